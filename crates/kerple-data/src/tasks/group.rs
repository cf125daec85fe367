//! Products in a finite group: the word problem, which state tracking is measured by.
//!
//! ```text
//! x1 x2 x3 ..      answers under each: x1, x1 then x2, x1 then x2 then x3, ..
//! ```
//!
//! Encoders answer the same at empty places after the sequence (`answer = "tape"`).
//!
//! After Liu et al. 2022, arXiv:2210.10749, and Merrill et al. 2024, arXiv:2404.08819.

use super::{AnswerPlaces, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short};
use crate::error::Result;
use crate::random::random;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most elements of a cyclic group.
const MOST_ELEMENTS: usize = 65_536;

/// A finite group, whose elements are numbers from 0, the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FiniteGroup {
    /// All permutations of so many things, `s3` to `s5`, in the lexicographic order of their one-line notation.
    Symmetric(usize),
    /// The even ones, `a3` to `a5`, in the same order.
    Alternating(usize),
    /// Sums modulo a number, `z2` and on.
    Cyclic(usize),
}

impl fmt::Display for FiniteGroup {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            FiniteGroup::Symmetric(n) => write!(f, "s{n}"),
            FiniteGroup::Alternating(n) => write!(f, "a{n}"),
            FiniteGroup::Cyclic(n) => write!(f, "z{n}"),
        }
    }
}

impl From<FiniteGroup> for String {
    fn from(group: FiniteGroup) -> String {
        group.to_string()
    }
}

impl TryFrom<String> for FiniteGroup {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<FiniteGroup, String> {
        let size = |letter: char| name.strip_prefix(letter).and_then(|size| size.parse::<usize>().ok());
        match (size('s'), size('a'), size('z')) {
            (Some(n @ 3..=5), ..) => Ok(FiniteGroup::Symmetric(n)),
            (_, Some(n @ 3..=5), _) => Ok(FiniteGroup::Alternating(n)),
            (.., Some(n @ 2..=MOST_ELEMENTS)) => Ok(FiniteGroup::Cyclic(n)),
            _ => Err(format!("`{name}` is not a group; there are s3 to s5, a3 to a5, and z2 to z{MOST_ELEMENTS}")),
        }
    }
}

impl FiniteGroup {
    /// Number of elements.
    pub fn order(self) -> usize {
        match self {
            FiniteGroup::Symmetric(n) => (1..=n).product(),
            FiniteGroup::Alternating(n) => (1..=n).product::<usize>() / 2,
            FiniteGroup::Cyclic(n) => n,
        }
    }

    /// The state after each of some elements; the first state is the identity.
    pub(crate) fn states(self, elements: &[u32]) -> Vec<u32> {
        let mut states = Vec::with_capacity(elements.len());
        if let FiniteGroup::Cyclic(n) = self {
            let mut state = 0;
            states.extend(elements.iter().map(|element| {
                state = (state + *element as usize) % n;
                state as u32
            }));
            return states;
        }
        let all = self.permutations();
        let mut state = all[0].clone();
        for element in elements {
            // the state first, then the element
            state = state.iter().map(|&at| all[*element as usize][at]).collect();
            states.push(all.binary_search(&state).expect("a group is closed") as u32);
        }
        states
    }

    /// Elements in one-line notation, ascending; none of a cyclic group.
    fn permutations(self) -> Vec<Vec<usize>> {
        let (n, only_even) = match self {
            FiniteGroup::Symmetric(n) => (n, false),
            FiniteGroup::Alternating(n) => (n, true),
            FiniteGroup::Cyclic(_) => return Vec::new(),
        };
        let mut all = vec![Vec::new()];
        for _ in 0..n {
            let longer = |start: Vec<usize>| {
                let left: Vec<usize> = (0..n).filter(|at| !start.contains(at)).collect();
                left.into_iter().map(move |at| [&start[..], &[at]].concat())
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all.retain(|permutation| !only_even || is_even(permutation));
        all
    }
}

fn is_even(permutation: &[usize]) -> bool {
    let behind = |at: usize| permutation[at + 1..].iter().filter(|later| **later < permutation[at]).count();
    (0..permutation.len()).map(behind).sum::<usize>().is_multiple_of(2)
}

/// Which states are answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoredStates {
    /// The state at every token.
    All,
    /// The state at the end.
    Last,
}

/// Products of uniform elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupProduct {
    /// The group.
    pub group: FiniteGroup,
    /// Which states are answers.
    pub score: ScoredStates,
    /// Where they stand.
    #[serde(skip_serializing_if = "AnswerPlaces::is_marked")]
    pub answer: AnswerPlaces,
}

impl Default for GroupProduct {
    fn default() -> Self {
        GroupProduct { group: FiniteGroup::Symmetric(3), score: ScoredStates::All, answer: AnswerPlaces::Marked }
    }
}

impl Examples for GroupProduct {
    fn facts(&self) -> TaskInfo {
        let GroupProduct { group, score, .. } = self;
        let order = group.order();
        TaskInfo {
            name: "group".to_owned(),
            answer: self.answer.mode(),
            vocab: order,
            classes: order,
            shortest: 1,
            chance: 1.0 / order as f64,
            unit: AnswerUnit::Token,
            level: None,
            content: self.answer.content(format!("group 1 GroupProduct {{ group: {group:?}, score: {score:?} }}")),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        refuse_short("group", length, 1)?;
        let input = random(place, length).tokens(length, self.group.order());
        let mut targets = self.group.states(&input);
        if self.answer == AnswerPlaces::Tape {
            let first = if self.score == ScoredStates::All { 0 } else { length - 1 };
            let targets = targets.split_off(first);
            return Ok(Example { scored: vec![true; targets.len()], input, targets, ..Example::default() });
        }
        let scored: Vec<bool> = (1..=length).map(|at| self.score == ScoredStates::All || at == length).collect();
        targets.iter_mut().zip(&scored).filter(|(_, scored)| !**scored).for_each(|(target, _)| *target = 0);
        Ok(Example { input, targets, scored, ..Example::default() })
    }
}
