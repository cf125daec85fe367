//! Collections of reference values, and the runners of their cases.
//!
//! A runner owns the cases of its collection only: two collections may have cases of the same name.
//! The manifest names its collection at `set`; without it the folder's name does. A folder of
//! another name belongs to the one collection that knows all of its cases and runs one of them.

use crate::case::Case;
use crate::folder::ReferenceFolder;
use crate::{
    CaseRunner, attention, clocks, data, interchange, kernel_fit, length_suite, media, packed, positions, score_mods,
    spe, tables, theory, training,
};

/// A collection that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    Kerple,
    /// DAPE and the encodings it compares with.
    Dape,
    /// Stochastic positional encodings, and the data they are tested on.
    Spe,
    Clocks,
    /// Positional methods of 2026, of several families.
    Positions,
    /// Packed documents.
    Packed,
    Interchange,
    /// Formal languages, all next to the manifest.
    Che,
    /// Tasks with known answers, and how far models reach.
    LengthSuite,
    /// Kernel families fitted to curves.
    KernelFit,
}

impl Collection {
    /// Folders, and which collection each holds.
    const FOLDERS: [(&str, Collection); 12] = [
        ("kerple", Collection::Kerple),
        ("dape", Collection::Dape),
        ("encodings", Collection::Dape),
        ("spe", Collection::Spe),
        ("media", Collection::Spe),
        ("clocks", Collection::Clocks),
        ("positions2026", Collection::Positions),
        ("packed", Collection::Packed),
        ("interchange", Collection::Interchange),
        ("che", Collection::Che),
        ("length-suite", Collection::LengthSuite),
        ("kernel-fit", Collection::KernelFit),
    ];

    fn named(name: &str) -> Option<Collection> {
        Collection::FOLDERS.into_iter().find(|(own, _)| *own == name).map(|(_, collection)| collection)
    }

    /// The collection that a folder holds.
    pub fn of(folder: &ReferenceFolder) -> Option<Collection> {
        let said = folder.set().and_then(Collection::named);
        said.or_else(|| Collection::named(&folder.name())).or_else(|| {
            let knows = |collection: &Collection| {
                let known = |case: Case| collection.runner(&case).is_some() || collection.not_built(&case).is_some();
                Case::all(folder).any(|case| collection.runner(&case).is_some()) && Case::all(folder).all(known)
            };
            let mut owners: Vec<Collection> =
                Collection::FOLDERS.into_iter().map(|(_, collection)| collection).filter(knows).collect();
            owners.dedup();
            <[Collection; 1]>::try_from(owners).ok().map(|[owner]| owner)
        })
    }

    /// Why a case of a folder that holds none of the collections is not run.
    pub fn unknown(folder: &ReferenceFolder) -> String {
        let known = Collection::FOLDERS.map(|(name, _)| name).join(", ");
        let set = folder.set().map_or_else(String::new, |set| format!(" (set `{set}`)"));
        format!("unsupported collection `{}`{set}; this version supports {known}", folder.name())
    }

    /// What runs a case of this collection.
    pub fn runner(self, case: &Case) -> Option<CaseRunner> {
        match self {
            Collection::Kerple => kerple(case),
            Collection::Dape => match case.get("op").as_str()? {
                "score" => Some(score_mods::scores),
                "causal_attention" => Some(score_mods::attention),
                _ => None,
            },
            Collection::Spe => spe::runner(case.id()).or_else(|| media::runner(case.id())),
            Collection::Clocks => clocks::runner(case.id())
                .or_else(|| positions::runner_of_learned_positions(case.id()))
                .or_else(|| packed::runner_of_whole_rows(case.id())),
            Collection::Positions => positions::runner(case.id()),
            Collection::Packed => packed::runner(case.id()),
            Collection::Interchange => case.get("folder").is_string().then_some(interchange::run as CaseRunner),
            Collection::Che => None,
            Collection::LengthSuite => length_suite::runner(case),
            Collection::KernelFit => kernel_fit::runner(case),
        }
    }

    /// Why a case of this collection is not covered, if it is known and is not.
    pub fn not_built(self, case: &Case) -> Option<&'static str> {
        match self {
            Collection::Packed => packed::not_built(case.id()),
            _ => None,
        }
    }
}

/// The family of a case.
fn kerple(case: &Case) -> Option<CaseRunner> {
    Some(match case.id().split('/').next()? {
        "attn" => attention::run,
        "bias" => tables::bias,
        "decode" => tables::decode,
        "quirk" => tables::quirk,
        "clamp" => tables::clamp,
        "alibi_slopes" => tables::alibi_slopes,
        "alibi_bias" => tables::alibi_bias,
        "t5_buckets" => tables::t5_buckets,
        "t5_values" => tables::t5_values,
        "rotary_table" => tables::rotary_table,
        "rotary_apply" => tables::rotary_apply,
        "sinusoidal" => tables::sinusoidal,
        "bf16_row" => tables::bf16_row,
        "lr_schedule" => training::schedule,
        "adam_clamp" => training::adam,
        "ttest" => training::ttest,
        "ppl" => training::perplexity,
        "data" => data::run,
        "theory" => theory::run,
        "effective_length" => theory::effective_length,
        _ => return None,
    })
}
