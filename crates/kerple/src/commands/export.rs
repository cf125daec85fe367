//! `kerple export RUN`

use crate::args::ExportArgs;
use crate::command_error::CommandResult;
use crate::output::{print_json, remarkln, resultln};
use kerple_convert::ModelFamily;
use kerple_convert::export::{self, ExportOptions, Exported};
use kerple_lm::run::RunFolder;

/// Writes a run as a folder that transformers loads.
pub fn run(args: &ExportArgs) -> CommandResult {
    let options = ExportOptions {
        precision: args.dtype.into(),
        max_shard_size: args.max_shard_size,
        positions: args.positions,
        family: args.arch.map(ModelFamily::from),
    };
    let Exported { family, files, bytes, notes } = export::export(&RunFolder::new(&args.run), &args.out, &options)?;
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let (name, own) = (family.model_type(), family == ModelFamily::Kerple);
    if args.json {
        let folder = &args.out;
        print_json(&serde_json::json!({
            "folder": folder, "model_type": name, "remote_code": own, "files": files, "weight_bytes": bytes, "notes": notes,
        }));
        return Ok(());
    }
    remarkln!("{name}: {}, {} files, {} bytes of weights", family.architecture(), files.len(), bytes);
    let trust = if own { ", trust_remote_code=True" } else { "" };
    remarkln!("AutoModelForCausalLM.from_pretrained(\"{}\"{trust})", args.out.display());
    resultln!("{}", args.out.display());
    Ok(())
}
