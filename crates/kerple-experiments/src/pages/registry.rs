//! Every kind of table and figure, and the function that makes it.

use super::claims::paper_claims;
use super::description::{ItemContents, ItemDescription, PageDescription};
use super::page::PageItem;
use super::reader::ReproductionFolder;
use super::{change, dape, figures, own, tables, times};
use crate::error::{Error, Result};
use std::path::Path;

/// Ids of the tables and figures of a paper.
pub(super) fn ids(paper: &str) -> Vec<String> {
    let items = PageDescription::of(paper).map(|page| page.items).unwrap_or_default();
    items.into_iter().filter(|item| item.is_of(paper)).map(|item| item.id).collect()
}

impl ItemDescription {
    fn is_of(&self, paper: &str) -> bool {
        self.experiments.is_empty() || self.experiments.iter().any(|name| name == paper)
    }
}

/// Every table and figure of a reproduction, in the order of its page.
///
/// # Errors
/// A paper without a page, damaged records.
pub(super) fn items(all: &ReproductionFolder, folder: &Path) -> Result<Vec<PageItem>> {
    let paper = all.manifest.paper.as_str();
    // what is neither a paper here nor claims anything has no page
    let Some(page) = PageDescription::of(paper).or_else(|| own_page(all)) else {
        let hint = match paper {
            // whose page every build with music has
            "spe" => "build with `cargo build --features music-lra`; the released command has its pages",
            _ => "use the version that wrote the folder; this one has no pages for it",
        };
        return Err(Error::refused(format!("{} contains a reproduction of {paper}", folder.display()), hint));
    };
    let is_shown = |item: &&ItemDescription| {
        item.is_of(paper) && item.scale.as_ref().is_none_or(|scale| *scale == all.manifest.scale)
    };
    let made = |description: &ItemDescription| {
        let mut item = PageItem::new(description);
        fill(all, &page, &description.shows, &mut item)?;
        Ok(item)
    };
    page.items.iter().filter(is_shown).map(made).collect()
}

/// The page of an experiment that this version does not know: its claims are all that a page needs.
fn own_page(all: &ReproductionFolder) -> Option<PageDescription> {
    (!all.manifest.claims.is_empty()).then(|| PageDescription::of("seeds")).flatten()
}

fn fill(all: &ReproductionFolder, page: &PageDescription, shows: &ItemContents, item: &mut PageItem) -> Result<()> {
    match shows {
        ItemContents::Claims if page.claims.is_none() => own::claims(all, page, item),
        ItemContents::Claims => paper_claims(all, page, item, |item| {
            page.hierarchy.as_ref().map(|table| dape::che::claims(all, table, item)).unwrap_or_default()
        }),
        ItemContents::Changes { methods } => change::changes(all, &page.methods_of(methods), item),
        ItemContents::Texts { raw_sizes } => tables::texts(all, raw_sizes, item),
        ItemContents::Configuration(table) => tables::configuration(all, page, table, item),
        ItemContents::Times(table) => times::times(all, page, table, item),
        ItemContents::Perplexities { grids } => {
            grids.iter().for_each(|grid| tables::perplexities(all, page, grid, item));
        }
        ItemContents::Kernels { label } => figures::kernels(all, label, item),
        ItemContents::Positions { nth } => figures::positions(all, *nth, item),
        ItemContents::EffectiveLengths => figures::effective_lengths(all, item),
        ItemContents::Lengths { methods, drawn } => {
            dape::perplexity::lengths(all, page, &page.methods_of(methods), *drawn, item);
        }
        ItemContents::Hierarchy => {
            page.hierarchy.iter().for_each(|table| dape::che::che(all, table, item));
        }
        ItemContents::TaskExamples => tables::task_examples(all, item),
        ItemContents::Scores { longest_alone } => dape::scores::scores(all, *longest_alone, item)?,
        #[cfg(feature = "music-lra")]
        ItemContents::Spe(shown) => shown.fill(all, page, item),
        ItemContents::Levels => own::levels(all, page, item),
        ItemContents::LevelChanges => own::changes(all, page, item),
        ItemContents::UpdateTimes => own::time::times(all, page, item),
        ItemContents::LearnedKernels => own::kernels::kernels(all, page, item),
    }
    Ok(())
}
