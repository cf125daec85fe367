//! What only the page of DAPE shows: perplexities with DAPE as the comparison, formal languages, and
//! scores of last queries.

pub(super) mod che;
pub(super) mod perplexity;
pub(super) mod scores;
