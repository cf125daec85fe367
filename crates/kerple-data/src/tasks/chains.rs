//! Chains of names: one name gets a value, each other one the value of a name before it.
//!
//! ```text
//! noise.. SET x IS 4 7 END noise.. SET y IS x END SET z IS y END noise..
//!   ask = "names"   ASK 4 7 x y     answers under 7 x y: x y z
//!   ask = "value"   ASK z 4         answers under z 4: 4 7
//! ```
//!
//! After the variable tracking of RULER (Hsieh et al. 2024, arXiv:2404.06654). A single chain, as there, can be answered by listing
//! every name that is set, in order; several chains cannot.

use super::{AnswerMode, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::{Error, Result};
use crate::random::{TaskRng, random};
use serde::{Deserialize, Serialize};

const SET: u32 = 10;
const IS: u32 = 11;
const END: u32 = 12;
const ASK: u32 = 13;
const FIRST_NAME: u32 = 14;

/// What a chain is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainQuestion {
    /// All names that have a value.
    Names,
    /// The value of the last name.
    Value,
}

/// Names that are set to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VariableTracking {
    /// Chains of a sequence, of which one is asked for.
    pub chains: usize,
    /// Names of a chain behind its first.
    pub hops: usize,
    /// Number of distinct names.
    pub names: usize,
    /// Digits of a value.
    pub digits: usize,
    /// Number of distinct noise tokens, which come in turns.
    pub period: usize,
    /// What is asked for.
    pub ask: ChainQuestion,
}

impl Default for VariableTracking {
    fn default() -> Self {
        VariableTracking { chains: 2, hops: 4, names: 64, digits: 5, period: 24, ask: ChainQuestion::Names }
    }
}

impl VariableTracking {
    /// Tokens that state all chains.
    fn stated(&self) -> usize {
        self.chains * (self.digits + 4 + 5 * self.hops)
    }

    /// Tokens of the question and what is fed back of the answer.
    fn asked(&self) -> usize {
        match self.ask {
            ChainQuestion::Names => 1 + self.digits + self.hops,
            ChainQuestion::Value => 1 + self.digits,
        }
    }

    /// Values of which no two are equal.
    fn values(&self, draw: &mut TaskRng) -> Vec<Vec<u32>> {
        let mut values: Vec<Vec<u32>> = Vec::new();
        while values.len() < self.chains {
            let value = draw.tokens(self.digits, 10);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// The statements of each gap of the noise in their order: those of a chain in its order, those of different chains mixed
    /// at random.
    fn gaps(&self, draw: &mut TaskRng, count: usize) -> Vec<Vec<(usize, usize)>> {
        let mut gaps = vec![Vec::new(); count];
        for chain in 0..self.chains {
            let mut own: Vec<usize> = (0..=self.hops).map(|_| draw.below(count)).collect();
            own.sort_unstable();
            own.into_iter().for_each(|gap| gaps[gap].push(chain));
        }
        let mut said = vec![0; self.chains];
        let number = |chain: usize, said: &mut Vec<usize>| {
            said[chain] += 1;
            (chain, said[chain] - 1)
        };
        gaps.into_iter()
            .map(|mut chains| {
                draw.shuffle(&mut chains);
                chains.into_iter().map(|chain| number(chain, &mut said)).collect()
            })
            .collect()
    }
}

impl Examples for VariableTracking {
    fn facts(&self) -> TaskInfo {
        let (classes, choices) = match self.ask {
            ChainQuestion::Names => (FIRST_NAME as usize + self.names, self.names),
            ChainQuestion::Value => (10, 10),
        };
        TaskInfo {
            name: "vt".to_owned(),
            answer: AnswerMode::Marked,
            vocab: FIRST_NAME as usize + self.names + self.period,
            classes,
            shortest: self.stated() + self.asked(),
            chance: 1.0 / choices as f64,
            unit: AnswerUnit::Whole,
            level: None,
            content: format!("vt 1 {self:?}"),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let VariableTracking { chains, hops, names, period, ask, .. } = *self;
        let shortest = self.facts().shortest;
        refuse_short("vt", length, shortest)?;
        let mut draw = random(place, length);
        let drawn = draw.distinct(chains * (hops + 1), names);
        let name = |chain: usize, number: usize| FIRST_NAME + drawn[chain * (hops + 1) + number] as u32;
        let values = self.values(&mut draw);
        // the noise ends on a whole period, and statements stand behind one, or behind the part of one at the start
        let noise = length - shortest;
        let first_noise = FIRST_NAME + names as u32;
        let noise_token = |at: usize| first_noise + ((at + period - noise % period) % period) as u32;
        let (mut body, mut passed) = (Vec::new(), 0);
        for (gap, statements) in self.gaps(&mut draw, noise / period + 1).into_iter().enumerate() {
            let until = noise % period + period * gap;
            body.extend((passed..until).map(noise_token));
            passed = until;
            for (chain, number) in statements {
                body.extend([SET, name(chain, number), IS]);
                match number.checked_sub(1) {
                    None => body.extend(&values[chain]),
                    Some(before) => body.push(name(chain, before)),
                }
                body.push(END);
            }
        }
        let asked = draw.below(chains);
        let of_chain: Vec<u32> = (0..=hops).map(|number| name(asked, number)).collect();
        Ok(match ask {
            ChainQuestion::Names => Example::asked(body, &[&[ASK], &values[asked][..]].concat(), &of_chain),
            ChainQuestion::Value => Example::asked(body, &[ASK, of_chain[hops]], &values[asked]),
        })
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let (input, answer) = (&example.input, example.whole_answer.clone()?);
        let stated: Vec<usize> = (0..answer.start).filter(|at| input[*at] == SET).collect();
        if self.ask == ChainQuestion::Value {
            return Some(("the first value", input[stated.first()? + 3..][..self.digits].to_vec()));
        }
        let value = &input[answer.start + 1 - self.digits..=answer.start];
        let root = stated.iter().position(|at| input[at + 3..].starts_with(value))?;
        let next = |name: u32| {
            let after = stated.iter().position(|at| input[at + 1] == name).and_then(|number| stated.get(number + 1));
            after.map_or(name, |at| input[at + 1])
        };
        let names = input[answer.start + 1..answer.end].iter().map(|name| next(*name));
        Some(("the name that is set next", std::iter::once(input[stated[root] + 1]).chain(names).collect()))
    }

    fn check(&self) -> Result<()> {
        within("data.task.chains", self.chains, 1..=1024)?;
        within("data.task.hops", self.hops, 1..=1024)?;
        within("data.task.names", self.names, 1..=65_536)?;
        within("data.task.digits", self.digits, 1..=1024)?;
        within("data.task.period", self.period, 1..=65_536)?;
        let needed = self.chains * (self.hops + 1);
        if needed > self.names {
            let message = format!(
                "data.task.names: {} names are too few for {} chains of {} hops, which need {needed}",
                self.names, self.chains, self.hops
            );
            return Err(Error::refused(message, "raise `names`, or lower `chains` or `hops`"));
        }
        let values = 10usize.saturating_pow(self.digits as u32);
        if values < self.chains {
            let message = format!(
                "data.task.digits: of {} digits there are {values} values, too few for {} chains",
                self.digits, self.chains
            );
            return Err(Error::refused(message, "raise `digits`, or lower `chains`"));
        }
        Ok(())
    }
}
