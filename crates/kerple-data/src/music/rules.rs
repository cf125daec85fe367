//! Which events may follow when music is sampled, as published.

use super::groove::{self, TRACKS, after_shift};
use super::remi;

/// Keeps track of a growing piece.
///
/// Pop piano: a position is not before the last one of its bar; no padding. Grooves: only notes that sound end, time goes
/// forward, and a piece does not begin again. Whatever has come, some event may follow.
#[derive(Clone, Debug)]
pub struct Rules(RulesState);

#[derive(Clone, Debug)]
enum RulesState {
    Remi { events: Vec<remi::RemiEvent>, position: u8 },
    Groove { events: Vec<groove::GrooveEvent>, now: u64, sounding: Box<[[u32; 128]; TRACKS]> },
}

impl Rules {
    pub(super) fn remi(events: Vec<remi::RemiEvent>) -> Rules {
        Rules(RulesState::Remi { events, position: 0 })
    }

    pub(super) fn groove(events: Vec<groove::GrooveEvent>) -> Rules {
        Rules(RulesState::Groove { events, now: 0, sounding: Box::new([[0; 128]; TRACKS]) })
    }

    /// Whether an event may come next.
    pub fn allows(&self, token: u32) -> bool {
        match &self.0 {
            RulesState::Remi { events, position } => match events.get(token as usize) {
                Some(remi::RemiEvent::Beat(next)) => next >= position,
                Some(remi::RemiEvent::Padding) | None => false,
                Some(_) => true,
            },
            RulesState::Groove { events, now, sounding } => match events.get(token as usize) {
                Some(groove::GrooveEvent::NoteOff(track, pitch)) => {
                    sounding[usize::from(*track)][usize::from(*pitch)] > 0
                }
                Some(groove::GrooveEvent::TimeShift(beats, tick)) => after_shift(*now, *beats, *tick) > *now,
                Some(groove::GrooveEvent::Begin) | None => false,
                Some(groove::GrooveEvent::NoteOn(..) | groove::GrooveEvent::End) => true,
            },
        }
    }

    /// Takes the next event, of the prompt or drawn.
    pub fn take(&mut self, token: u32) {
        match &mut self.0 {
            RulesState::Remi { events, position } => match events.get(token as usize) {
                Some(remi::RemiEvent::Bar) => *position = 0,
                Some(remi::RemiEvent::Beat(next)) => *position = *next,
                _ => {}
            },
            RulesState::Groove { events, now, sounding } => match events.get(token as usize) {
                Some(groove::GrooveEvent::TimeShift(beats, tick)) => *now = after_shift(*now, *beats, *tick),
                Some(groove::GrooveEvent::NoteOn(track, pitch)) => {
                    sounding[usize::from(*track)][usize::from(*pitch)] += 1;
                }
                Some(groove::GrooveEvent::NoteOff(track, pitch)) => {
                    let count = &mut sounding[usize::from(*track)][usize::from(*pitch)];
                    *count = count.saturating_sub(1);
                }
                Some(groove::GrooveEvent::Begin | groove::GrooveEvent::End) => {
                    (*now, **sounding) = (0, [[0; 128]; TRACKS]);
                }
                None => {}
            },
        }
    }
}
