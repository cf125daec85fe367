//! Figures: plots with captions, and their places on a page.

use super::{SMALL, WIDE};
use crate::plot::{Plot, grid, standalone};

/// Where a figure stands on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Beside the table of this number.
    Table(usize),
    /// Beside the table of answers of this number.
    Answers(usize),
    /// Over all tables of answers.
    Suite,
    /// Among losses by position.
    Positions,
    /// Among learned kernels.
    Kernels,
    /// Among losses over training.
    Training,
}

/// A plot, or small ones that belong together, with words.
pub struct Figure {
    /// Its name on the page, and that of its file.
    pub id: String,
    /// Where it stands.
    pub section: Section,
    /// Its title.
    pub title: String,
    /// What it shows.
    pub caption: String,
    /// One large plot, or small ones that carry their titles.
    pub plots: Vec<Plot>,
}

impl Figure {
    /// Where the figure alone is, from the report's folder.
    pub fn file(&self) -> String {
        format!("figures/{}.svg", self.id)
    }

    /// The figure as a file of its own.
    pub fn alone(&self) -> String {
        let (small, (width, height)) = self.small();
        match self.plots.first() {
            Some(plot) if small.is_empty() => standalone(&plot.svg(WIDE.0, WIDE.1)),
            _ => standalone(&grid(&small, (3.0 * SMALL.0 / width) as usize, width, height)),
        }
    }

    /// Its small plots, and the size of each: the largest that one of them needs.
    pub(crate) fn small(&self) -> (Vec<String>, (f64, f64)) {
        let small = || self.plots.iter().filter(|plot| plot.titled);
        let size = small().map(|plot| plot.small_size(SMALL)).fold(SMALL, |a, b| (a.0.max(b.0), a.1.max(b.1)));
        (small().map(|plot| plot.svg(size.0, size.1)).collect(), size)
    }
}
