//! Options of `kerple serve`.

use super::groups::{Hardware, count};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Serve {
    /// Run folder.
    pub run: PathBuf,
    /// Address to listen on. Any but this machine's own lets others in: there is no key and no encryption.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 lets the system choose one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// What clients call the model; the name of the run folder when absent.
    #[arg(long)]
    pub name: Option<String>,
    /// Most tokens of a prompt and its completion; when absent 32 training lengths, at least 4096, as far as the encoding is
    /// defined.
    #[arg(long, value_parser = count)]
    pub max_len: Option<usize>,
    /// Texts that are written at the same time.
    #[arg(long, default_value_t = 8, value_parser = count)]
    pub batch: usize,
    /// Prompts that wait or are worked on; more are refused until some are done.
    #[arg(long, default_value_t = 256, value_parser = queue)]
    pub queue: usize,
    /// Most connections that are open at the same time. Where all are taken, those that have sent no whole request for a second
    /// are closed for new ones.
    #[arg(long, default_value_t = 512, value_parser = count)]
    pub connections: usize,
    /// Most MiB of a request's body; when absent what 16 prompts of --max-len tokens need, from 1 to 16 MiB.
    #[arg(long, value_name = "MIB", value_parser = mebibytes)]
    pub max_body: Option<usize>,
    /// Another name that requests may be for, besides localhost, this machine's addresses and --host; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    #[command(flatten)]
    pub hardware: Hardware,
}

/// A place is held for each, up to this many.
const MOST_QUEUED: usize = 1 << 16;

/// Longer bodies than this many MiB are no requests.
const LARGEST_BODY: usize = 1 << 10;

fn mebibytes(text: &str) -> Result<usize, String> {
    match count(text)? {
        number if number <= LARGEST_BODY => Ok(number << 20),
        _ => Err(format!("it must be at most {LARGEST_BODY}")),
    }
}

fn queue(text: &str) -> Result<usize, String> {
    match count(text)? {
        number if number <= MOST_QUEUED => Ok(number),
        _ => Err(format!("it must be at most {MOST_QUEUED}")),
    }
}
