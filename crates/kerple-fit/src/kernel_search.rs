//! Which kernel should a model learn? A search over a [`Space`](crate::space::Space) of expressions.
//!
//! ```text
//! space --rung-0--> a quarter --rung-1--> a quarter --rung-2--> 5 finalists --confirmation--> a verdict for each
//!        s updates              4 s                  16 s        full updates, other seeds, test split
//! ```
//!
//! Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) spends most updates on what looks best. What looks best
//! of many is partly lucky, so the numbers of rungs are biased, and nothing is concluded from them. Finalists are trained anew
//! with seeds and on text that no rung used, and only they are tested: one paired test per finalist against
//! [`REFERENCE`], all corrected together by Holm's method.
//!
//! A [`SearchPlan`] is written before the first update. It contains the space, the stages with their seeds, and what counts,
//! and every row names its hash.
//!
//! # Why the finalists are tested against one baseline, and what was rejected
//!
//! The question is whether an expression improves on the logarithm, so each finalist has one test. Tests of all pairs were
//! rejected: they would need a stricter correction, and a difference of two finalists answers no question of the search.

mod confirmation;
mod figures;
mod page;
mod plan;
mod stages;
mod synthetic;
mod training;

pub use confirmation::{ComparedArm, FinalistVerdict, SearchCounts, SearchResult, SelectionRatio};
pub use page::{WrittenSearch, write};
pub use plan::{
    BASELINES, CONFIRMATION_SEEDS, FINALISTS, GROWTH, MARGIN, PLAN_FILE, REFERENCE, RUNG_SEEDS, RUNGS, RunCost,
    SearchMeasure, SearchPlan, SearchRequest, SearchRules, StagePlan,
};
pub use stages::{Arm, ArmScore, RungEntry, RungResult, SearchOutcome, SearchRow, StageOutcome, run};
pub use synthetic::SyntheticMeasure;
pub use training::{ScoredSplits, TrainingMeasure};
