//! Options of `kerple serve`.

use super::groups::{Hardware, count};
use clap::Args;
use std::net::Ipv6Addr;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Run folder.
    pub run: PathBuf,
    /// Address to listen on. With any other address than this machine's own, other machines can
    /// connect, without a key or encryption.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; with 0 the system chooses one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Model name for clients; by default the name of the run folder.
    #[arg(long, value_parser = model_name)]
    pub served_model_name: Option<String>,
    /// Maximum number of tokens of a prompt with its completion. By default 32 training lengths and
    /// at least 4096, limited to what the encoding supports.
    #[arg(long, value_parser = count)]
    pub max_model_len: Option<usize>,
    /// Maximum number of sequences that are decoded at the same time.
    #[arg(long, default_value_t = 8, value_parser = count)]
    pub max_num_seqs: usize,
    /// Maximum number of prompts that wait or are processed; further prompts are refused until one
    /// is done.
    #[arg(long, default_value_t = 256, value_parser = queue)]
    pub max_queue: usize,
    /// Maximum number of open connections. When all are in use, connections that have not sent a
    /// complete request for a second, or for ten while they send a body, are closed for new ones.
    #[arg(long, default_value_t = 512, value_parser = count)]
    pub connections: usize,
    /// Maximum size of a request body in MiB. By default what 16 prompts of --max-model-len tokens need,
    /// from 1 to 16 MiB.
    #[arg(long, value_name = "MIB", value_parser = mebibytes)]
    pub max_body: Option<usize>,
    /// Another host name that requests may address, besides localhost, this machine's addresses and
    /// --host; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = host_name)]
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

/// A name that clients can give.
fn model_name(text: &str) -> Result<String, String> {
    match text.trim().is_empty() || text.chars().any(char::is_control) {
        true => Err("it must be a name of one line, such as my-model".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// A name as requests have it, where nothing else could ever be allowed.
fn host_name(text: &str) -> Result<String, String> {
    let is_name = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter));
    let address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match (is_name && !text.is_empty()) || address.is_some_and(|text| text.parse::<Ipv6Addr>().is_ok()) {
        true => Ok(text.to_owned()),
        false => Err("it must be the name of a host, such as gpu7.example, without scheme and port".to_owned()),
    }
}
