//! The space of a search: all kernel expressions of a few base functions, each once.
//!
//! ```text
//! expression = base | k + k | k*k | pow(k, q) | neglog(k) | exp(k)        at most `size` bases
//! ```
//!
//! Amplitudes that only matter together are one: a product has the amplitude of its first factor, and inside `pow` a sum
//! has one amplitude less. One of `pow`, `neglog` and `exp` is not applied to the result of another, so the space is finite.
//! Every expression is written, and then one of these happens to it:
//!
//! * refused: no rule proves it, or a formula such as `pow` of a positive kernel has no value; or it has more parameters
//!   than a fit searches for ([`MAX_SEARCHED`](crate::MAX_SEARCHED));
//! * merged: its canonical text is known, or its curves are those of an expression before it, see [`MERGED`]. The shorter
//!   one stays. A baseline is known from the start;
//! * kept: larger expressions are built from it.
//!
//! # Why curves are compared twice
//!
//! Whether two families are one takes 64 curves of each, fitted by the other. A space has thousands of pairs, so first each
//! family is fitted to a few fixed curves. Families whose curves differ by less than a share of their size have errors there
//! that differ by no more than that share (the triangle inequality), so most pairs are distinguished by a few numbers.

mod curves;
mod tree;

pub(crate) use curves::{CurveSpace, relative_error};
use tree::{Tree, Unary};

use crate::family::Family;
use kerple_core::calculus::expr::Expr;
use kerple_run::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Two families are one when each describes all curves of the other with at most this error, as a share of a curve's size.
pub const MERGED: f64 = 0.01;
/// Curves of each family that the other one is fitted to.
pub const DRAWS: usize = 64;
/// Most base functions of an expression.
pub const MAX_SIZE: usize = 4;
/// Fewest distances on which families are compared.
pub const LEAST_LENGTH: usize = 32;
/// Most expressions that are written before any is compared; more would take days.
pub const MAX_WRITTEN: usize = 100_000;

/// What a space is built of.
#[derive(Clone, Debug, PartialEq)]
pub struct SpaceOptions {
    /// Base functions: names of families or calls, see [`bases`].
    pub bases: Vec<String>,
    /// Most base functions of an expression.
    pub size: usize,
    /// Distances `0..length` on which families are compared.
    pub length: usize,
    /// Also keeps expressions that no rule proves.
    pub unproven: bool,
}

/// An expression of the space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpaceExpression {
    /// Its canonical text.
    pub expression: String,
    /// Base functions in it.
    pub size: usize,
    /// Learned numbers per head.
    pub parameters: usize,
    /// What the rules prove of it.
    pub class: String,
}

impl SpaceExpression {
    /// Its text in tables: what is unproven carries the word.
    pub fn title(&self) -> String {
        if self.is_proven() { self.expression.clone() } else { format!("{} [unproven]", self.expression) }
    }

    /// Whether a rule proves it.
    pub fn is_proven(&self) -> bool {
        self.class != kerple_core::calculus::rules::KernelClass::Unproven.to_string()
    }
}

/// Two expressions that are one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergedExpression {
    /// The one that went.
    pub expression: String,
    /// The one that stays.
    pub kept: String,
}

/// How many expressions were written, and what happened to those that are not in the space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceCounts {
    /// All that were written, before any was compared.
    pub written: usize,
    /// No rule proves them, or they have no value at some distance.
    pub refused_without_proof: usize,
    /// More parameters than a fit searches for.
    pub refused_for_parameters: usize,
    /// Their canonical text was there before.
    pub same_text: usize,
    /// Their curves are those of an expression before them.
    pub same_curves: usize,
}

/// Expressions to choose among.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// The expressions, shortest first.
    pub expressions: Vec<SpaceExpression>,
    /// Counts of the others.
    pub counts: SpaceCounts,
    /// Those whose curves are those of another.
    pub merged: Vec<MergedExpression>,
}

/// An expression that stays: larger ones are built from it.
struct KeptExpression {
    tree: Option<Tree>,
    size: usize,
    family: Family,
    errors: Vec<f64>,
    is_baseline: bool,
}

/// An expression before it is compared.
struct Candidate {
    tree: Tree,
    family: Family,
}

/// Base functions of a list such as `log,power,exp` or `power(a, 1),gauss`: names of families, or calls with a learned
/// amplitude.
///
/// # Errors
/// An expression that cannot be read, a constant, and one that is not a single function.
///
/// ```
/// use kerple_fit::space::bases;
/// assert_eq!(bases("log, exp, power(a, 1)")?, ["log(b, a)", "exp(c, a, 1)", "power(a, 1)"]);
/// assert!(bases("log(b, a) + power(a, 1)").is_err());
/// # Ok::<(), kerple_run::Error>(())
/// ```
pub fn bases(text: &str) -> Result<Vec<String>> {
    let families = Family::list(text, false)?;
    let base = |family: &Family| {
        let hint = "give functions with a learned amplitude, e.g. --base log,power,exp";
        let refuse = |what: &str| Err(Error::refused(format!("base `{}`: {what}", family.name), hint));
        if family.expr.is_constant() {
            return refuse("softmax ignores a constant");
        }
        if !family.expr.derivation().premises.is_empty() {
            return refuse("it is not a single function");
        }
        if family.amplitudes.len() != 1 {
            return refuse("its amplitude is not learned");
        }
        Ok(family.expr.to_string())
    };
    let found: Vec<String> = families.iter().map(base).collect::<Result<_>>()?;
    if let Some(twice) = (1..found.len()).find(|i| found[..*i].contains(&found[*i])) {
        return Err(Error::refused(format!("base `{}` is given twice", found[twice]), "give each base once"));
    }
    Ok(found)
}

impl Space {
    /// All expressions of the options, without `baselines`, which are kernels that are compared anyway. `tell` receives what
    /// is being done.
    ///
    /// # Errors
    /// Options out of range, and a space without an expression.
    pub fn new(options: &SpaceOptions, baselines: &[&str], tell: &mut dyn FnMut(String)) -> Result<Space> {
        options.check()?;
        let curves = CurveSpace::new(options.length);
        let mut builder = SpaceBuilder {
            options,
            kept: Vec::new(),
            texts: BTreeSet::new(),
            counts: SpaceCounts::default(),
            merged: Vec::new(),
            curves,
        };
        for baseline in baselines {
            let family = Family::read(baseline, false)?;
            let errors = builder.curves.panel_errors(&family);
            builder.kept.push(KeptExpression { tree: None, size: 1, family, errors, is_baseline: true });
        }
        for size in 1..=options.size {
            builder.add_level(size, tell)?;
        }
        let SpaceBuilder { kept, counts, merged, .. } = builder;
        let of = |kept: &KeptExpression| SpaceExpression {
            expression: kept.family.expr.to_string(),
            size: kept.size,
            parameters: kept.family.expr.roles().len(),
            class: kept.family.expr.derivation().statement(),
        };
        let expressions: Vec<SpaceExpression> = kept.iter().filter(|kept| !kept.is_baseline).map(of).collect();
        if expressions.is_empty() {
            let message = "no expression is left: all that were written are baselines or refused";
            return Err(Error::refused(message, "give more bases, or a larger --size"));
        }
        Ok(Space { expressions, counts, merged })
    }
}

impl SpaceOptions {
    fn check(&self) -> Result<()> {
        if !(1..=MAX_SIZE).contains(&self.size) {
            return Err(Error::refused(
                format!("--size {} is out of range, it must be 1 to {MAX_SIZE}", self.size),
                "give the number of base functions in an expression, e.g. --size 2",
            ));
        }
        if self.length < LEAST_LENGTH {
            return Err(Error::refused(
                format!("families are compared on {} distances, at least {LEAST_LENGTH} are needed", self.length),
                format!("evaluate a length of at least {LEAST_LENGTH}: --lengths {LEAST_LENGTH}"),
            ));
        }
        Ok(())
    }
}

struct SpaceBuilder<'a> {
    options: &'a SpaceOptions,
    kept: Vec<KeptExpression>,
    texts: BTreeSet<String>,
    counts: SpaceCounts,
    merged: Vec<MergedExpression>,
    curves: CurveSpace,
}

impl SpaceBuilder<'_> {
    /// Adds all expressions with this many base functions.
    fn add_level(&mut self, size: usize, tell: &mut dyn FnMut(String)) -> Result<()> {
        let trees = self.trees(size)?;
        tell(format!("expressions of {size} functions: {} written", trees.len()));
        let mut candidates: Vec<Candidate> = Vec::new();
        for tree in trees {
            candidates.extend(self.candidate(tree));
        }
        // the shorter of two stays
        let order = |of: &Candidate| (of.family.expr.roles().len(), of.family.name.len(), of.family.name.clone());
        candidates.sort_by_cached_key(order);
        tell(format!("expressions of {size} functions: {} to compare", candidates.len()));
        let curves = &self.curves;
        let errors: Vec<Vec<f64>> =
            candidates.par_iter().map(|candidate| curves.panel_errors(&candidate.family)).collect();
        for (number, (Candidate { tree, family }, errors)) in candidates.into_iter().zip(errors).enumerate() {
            tell(format!("expressions of {size} functions: {number} compared, {} in the space", self.kept.len()));
            let same = |other: &&mut KeptExpression| {
                curves.may_be_one(&errors, &other.errors) && curves.are_one(&family, &other.family)
            };
            match self.kept.iter_mut().find(same) {
                Some(other) => {
                    self.counts.same_curves += 1;
                    let (expression, kept) = (family.expr.to_string(), other.family.expr.to_string());
                    if expression == kept {
                        other.tree = Some(tree); // a baseline that is a base too
                    }
                    self.merged.push(MergedExpression { expression, kept });
                }
                None => {
                    self.kept.push(KeptExpression { tree: Some(tree), size, family, errors, is_baseline: false });
                }
            }
        }
        Ok(())
    }

    /// Every tree with this many base functions, built from what was kept.
    fn trees(&self, size: usize) -> Result<Vec<Tree>> {
        let smaller: Vec<(usize, &Tree)> =
            self.kept.iter().filter_map(|kept| Some((kept.size, kept.tree.as_ref()?))).collect();
        let mut found: Vec<Tree> = Vec::new();
        if size == 1 {
            found.extend(self.options.bases.iter().cloned().map(Tree::Base));
        }
        for (i, (first_size, first)) in smaller.iter().enumerate() {
            for (second_size, second) in &smaller[i..] {
                if first_size + second_size == size {
                    found.push(Tree::sum(first, second));
                    found.push(Tree::product(first, second));
                }
            }
            if found.len() > MAX_WRITTEN {
                let message = format!("more than {MAX_WRITTEN} expressions of {size} functions were written");
                return Err(Error::refused(message, "give a smaller --size, or fewer bases with --base"));
            }
        }
        let operations = Unary::ALL.iter().flat_map(|operation| {
            found.iter().filter(|tree| !tree.is_unary()).map(|tree| Tree::Unary(*operation, Box::new(tree.clone())))
        });
        let operations: Vec<Tree> = operations.collect();
        found.extend(operations);
        Ok(found)
    }

    /// The family of a tree, unless it is refused or was there before.
    fn candidate(&mut self, tree: Tree) -> Option<Candidate> {
        self.counts.written += 1;
        let text = tree.text();
        let read = if self.options.unproven { Expr::parse_unproven(&text) } else { Expr::parse(&text) };
        let Ok(expr) = read else {
            self.counts.refused_without_proof += 1;
            return None;
        };
        if !self.texts.insert(expr.to_string()) {
            self.counts.same_text += 1;
            return None;
        }
        let Ok(family) = Family::read(&expr.to_string(), self.options.unproven) else {
            self.counts.refused_for_parameters += 1;
            return None;
        };
        Some(Candidate { tree, family })
    }
}
