//! Parameters of calls: numbers, and learned ones with their starts.

use super::error::ParseErrorKind;
use super::token::Token;
use super::{Parsed, Parser};
use crate::calculus::expr::Node;
use crate::calculus::expr::ScalarTerm;
use crate::calculus::function::{Function, FunctionSlot};
use crate::calculus::parameter::{KernelInit, Role};

impl Parser<'_> {
    /// What follows the name of a learned parameter: nothing, `~ start` or `~ U(low, high)`.
    pub(super) fn learned(&mut self, name: String, role: Role, start: f64) -> Parsed<ScalarTerm> {
        if !self.take('~') {
            return Ok(ScalarTerm::Learned {
                name,
                init: KernelInit::Uniform { low: 0.0, high: start },
                default: true,
            });
        }
        let from = self.start();
        let init = if *self.peek(0) == Token::Name("U".into()) {
            self.next += 1;
            self.expect('(')?;
            let low = self.number()?;
            self.expect(',')?;
            let high = self.number()?;
            self.expect(')')?;
            let (least, most) = role.limits();
            if low > high || high < least || low > most {
                let kind = ParseErrorKind::OutOfRange {
                    name,
                    value: if low > most { low } else { high },
                    range: role.range(),
                    demand: "a start U(low, high) has low <= high and meets the range",
                };
                return Err(self.fail(self.since(from), kind));
            }
            KernelInit::Uniform { low, high }
        } else {
            let value = self.number()?;
            KernelInit::Fixed(self.check(&name, role, value, self.since(from))?)
        };
        Ok(ScalarTerm::Learned { name, init, default: false })
    }

    /// The arguments of a base kernel; without parentheses, all parameters are learned.
    pub(super) fn call(&mut self, function: Function, start: usize) -> Parsed<Node> {
        let slots = function.slots();
        let mut arguments: Vec<Option<ScalarTerm>> = vec![None; slots.len()];
        if !self.take('(') {
            let learn = |slot: &FunctionSlot| {
                let init = KernelInit::Uniform { low: 0.0, high: slot.start };
                ScalarTerm::Learned { name: slot.name.to_owned(), init, default: true }
            };
            return Ok(Node::Call { function, arguments: slots.iter().map(learn).collect() });
        }
        let mut position = 0;
        while !self.take(')') {
            if position > 0 {
                self.expect(',')?;
            }
            let from = self.start();
            let (index, value) = self.argument(function, position)?;
            if arguments[index].replace(value).is_some() {
                return Err(self.fail(self.since(from), ParseErrorKind::Repeated { name: slots[index].name }));
            }
            position += 1;
            if function == Function::Log && self.at("-") {
                return Err(self.unexpected(&[
                    "`,`",
                    "`)`",
                    "the logarithm of a kernel, with its sign: `-log(1 - k)`",
                ]));
            }
            if !self.at(",") && !self.at(")") {
                return Err(self.unexpected(&["`,`", "`)`"]));
            }
        }
        let span = self.since(start);
        let missing = |name| self.fail(span.clone(), ParseErrorKind::Missing { function: function.name(), name });
        let arguments = arguments.into_iter().zip(slots);
        let arguments =
            arguments.map(|(value, slot)| value.ok_or_else(|| missing(slot.name))).collect::<Parsed<_>>()?;
        self.admit(Node::Call { function, arguments }, start)
    }

    fn argument(&mut self, function: Function, position: usize) -> Parsed<(usize, ScalarTerm)> {
        let slots = function.slots();
        let start = self.start();
        let Token::Name(name) = self.peek(0).clone() else {
            let value = self.number()?;
            let Some(slot) = slots.get(position) else {
                let kind = ParseErrorKind::TooMany { function: function.name(), limit: slots.len() };
                return Err(self.fail(self.since(start), kind));
            };
            return Ok((position, ScalarTerm::Literal(self.check(slot.name, slot.role, value, self.since(start))?)));
        };
        self.next += 1;
        let Some(index) = slots.iter().position(|slot| slot.name == name) else {
            let kind = ParseErrorKind::UnknownParameter { function: function.name(), name };
            return Err(self.fail(self.since(start), kind));
        };
        let slot = slots[index];
        if self.take('=') {
            let from = self.start();
            let value = self.number()?;
            return Ok((index, ScalarTerm::Literal(self.check(slot.name, slot.role, value, self.since(from))?)));
        }
        Ok((index, self.learned(name, slot.role, slot.start)?))
    }
}
