//! `kerple serve RUN`

use super::{load_to_generate, stop_flag_saying};
use crate::args::ServeArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{remarkln, resultln};
use kerple_lm::run::{RunFolder, TrainedModel};
use kerple_serve::{Hosts, ServedModel, ServerLimits};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

/// Serves a trained run until it is stopped.
pub fn run(args: &ServeArgs) -> CommandResult {
    let address = address(args)?;
    let run = RunFolder::new(&args.run);
    let (runtime, TrainedModel { plan, state, model, notes }) = load_to_generate(&run, &args.hardware)?;
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let tokenizer = run.tokenizer(&plan)?;
    let special = run.special_tokens_of(&tokenizer)?;
    let usual = ServerLimits::of(&plan, &model);
    let max_model_len = args.max_model_len.unwrap_or(usual.max_model_len);
    let body = args.max_body.unwrap_or(ServerLimits::body_of(max_model_len));
    let limits = ServerLimits {
        max_model_len,
        max_num_seqs: args.max_num_seqs,
        max_queue: args.max_queue,
        body,
        connections: args.connections,
        ..usual
    };
    let hosts = hosts(args, &address);
    let served = ServedModel { name: name(args), plan, step: state.step, model, tokenizer, special, limits, hosts };
    served.check(runtime.limit().as_ref())?;
    if args.max_num_seqs > args.max_queue {
        let (queue, together) = (args.max_queue, args.max_num_seqs);
        remarkln!("note: --max-queue {queue} allows fewer sequences at the same time than --max-num-seqs {together}");
    }
    if !address.ip().is_loopback() {
        remarkln!("note: other machines can reach {}, and no key is required", address.ip());
    }
    let stop = stop_flag_saying("finishing open requests, then stopping; press Ctrl-C again to stop at once");
    let ready = |address: SocketAddr| {
        remarkln!("web page at /, completions at /v1/completions; up to {max_model_len} tokens; press Ctrl-C to stop");
        resultln!("http://{address}");
    };
    kerple_serve::serve(served, address, ready, stop)?;
    Err(CommandError::stopped("stopped; all open requests were answered", "re-run the command to serve again"))
}

fn address(args: &ServeArgs) -> Result<SocketAddr, CommandError> {
    let found = (args.host.as_str(), args.port).to_socket_addrs().ok().and_then(|mut all| all.next());
    let message = || format!("--host {}: unknown address", args.host);
    found.ok_or_else(|| {
        CommandError::misuse(
            message(),
            "use 127.0.0.1 for this machine only, 0.0.0.0 to \
        accept other machines",
        )
    })
}

/// The names that requests may be for: also the one that the address was given by.
fn hosts(args: &ServeArgs, address: &SocketAddr) -> Hosts {
    let names = args.allow_host.iter().chain([&args.host]).map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    Hosts { names: names.collect(), ..Hosts::of(address.ip()) }
}

/// What the folder is called, wherever it was named from.
fn name(args: &ServeArgs) -> String {
    let whole = args.run.canonicalize().unwrap_or_else(|_| args.run.clone());
    let folder = || whole.file_name().map_or("kerple".into(), |name| Path::new(name).display().to_string());
    args.served_model_name.clone().unwrap_or_else(folder)
}
