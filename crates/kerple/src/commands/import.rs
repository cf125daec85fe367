//! `kerple import FOLDER`

use crate::args::ImportArgs;
use crate::command_error::CommandResult;
use crate::output::{print_json, remarkln, resultln};
use kerple_convert::import::{self, ImportOptions, Imported};
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use std::collections::BTreeMap;

/// Makes a run of a model of another program.
pub fn run(args: &ImportArgs) -> CommandResult {
    let options = ImportOptions {
        eod_token: args.eod_token.clone(),
        tokenizer: args.tokenizer.clone(),
        pos_emb: args.pos_emb.clone(),
    };
    let Imported { plan, notes } = import::import(&args.folder, &args.out, &options)?;
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let family = plan.init_from.as_ref().and_then(|init_from| init_from.family());
    let family = family.map_or("", |family| family.model_type());
    let special = RunFolder::new(&args.out).special_tokens()?;
    if args.json {
        print_json(&serde_json::json!({
            "run": args.out, "family": family, "label": plan.label, "parameters": plan.parameters, "plan": plan.hash,
            "train_len": plan.train_len, "special_tokens": special, "notes": notes,
        }));
        return Ok(());
    }
    remarkln!(
        "{family}: {}, {} parameters, {}, {} tokens, trained at {}",
        plan.label,
        plan.parameters,
        layers(&plan),
        plan.data_info.vocab_size,
        plan.train_len
    );
    if let Ok(tokenizer) = RunFolder::new(&args.out).tokenizer(&plan) {
        let end = tokenizer.name(tokenizer.end_of_document()).unwrap_or_default();
        let file = args.out.join("tokenizer.json");
        remarkln!(
            "to prepare text for it: kerple prepare --tokenizer {} --eod-token '{end}' --input \
                TEXT --out DATA",
            file.display()
        );
    }
    resultln!("{}", args.out.display());
    Ok(())
}

/// How many layers there are, of which heads.
fn layers(plan: &Plan) -> String {
    let mut all: BTreeMap<[usize; 2], usize> = BTreeMap::new();
    for heads in (0..plan.model.n_layers).map(|layer| plan.model.heads(layer)) {
        *all.entry([heads.heads, heads.head_dim]).or_default() += 1;
    }
    let each = |([heads, head_dim], count): (&[usize; 2], &usize)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{count} layer{plural} of {heads} heads of {head_dim}")
    };
    all.iter().map(each).collect::<Vec<String>>().join(" and ")
}
