use super::*;
use crate::music::groove::GrooveEvent as Groove;
use crate::music::remi::RemiEvent as Remi;
use crate::music::style::{Onset, onset_drum, onset_duration, time_pitch};
use proptest::prelude::*;

fn note(start: u64, duration: u64, pitch: u8, velocity: u8) -> Note {
    Note { start, pitch, duration, velocity }
}

fn track(name: &str, notes: impl Into<Vec<Note>>) -> Track {
    Track { name: name.to_owned(), notes: notes.into(), ..Track::default() }
}

fn words(vocabulary: &Vocabulary, piece: &MusicPiece) -> String {
    vocabulary.spell(&vocabulary.tokens(piece).unwrap()).trim_end().to_owned()
}

#[test]
fn vocabularies_are_the_published_ones() {
    let remi = Representation::Remi.vocabulary();
    assert_eq!((remi.words().len(), remi.id("PAD_None")), (333, Some(332)));
    let kinds =
        [("Beat", 16), ("Chord", 133), ("Note_Duration", 17), ("Note_Pitch", 86), ("Note_Velocity", 24), ("Tempo", 54)];
    for (kind, count) in kinds {
        assert_eq!(remi.words().iter().filter(|word| word.starts_with(kind)).count(), count, "{kind}");
    }
    assert_eq!(remi.words()[..4], ["Bar_None", "Beat_0", "Beat_1", "Beat_10"]);
    assert!(remi.id("Chord_A#_+") < remi.id("Chord_A_+") && remi.words()[..332].is_sorted());
    let groove = Representation::Groove.vocabulary();
    assert_eq!((groove.words().len(), groove.id("eos"), groove.id("bos")), (794, Some(792), Some(793)));
    assert_eq!((groove.id("note_on_2_127"), groove.id("note_off_0_0")), (Some(383), Some(384)));
    assert_eq!((groove.id("time_shift_0_1"), groove.id("time_shift_2_0")), (Some(768), Some(791)));
    for vocabulary in [remi, groove] {
        let ids: Vec<u32> = (0..vocabulary.words().len() as u32).filter(|id| *id != vocabulary.end()).collect();
        assert_eq!(vocabulary.parse(&vocabulary.spell(&ids)).unwrap(), ids);
        assert!(
            vocabulary.parse("Bar_Two").is_err() && vocabulary.parse(&vocabulary.spell(&[vocabulary.end()])).is_err()
        );
    }
}

/// A bar of rest, then a chord off the grid, at 100 ticks a beat.
fn sketch() -> MusicPiece {
    MusicPiece {
        resolution: 100,
        tracks: vec![
            track("melody", [note(412, 110, 64, 71), note(830, 900, 110, 127), note(700, 3, 20, 1)]),
            track("chords", [note(410, 95, 67, 64)]),
            Track { drums: true, ..track("drums", [note(0, 10, 36, 90)]) },
        ],
        tempos: vec![Tempo { start: 0, beats_per_minute: 119.0 }, Tempo { start: 800, beats_per_minute: 152.4 }],
        markers: vec![
            Marker { start: 0, text: "A#_/o7_D".to_owned() },
            Marker { start: 700, text: "N_N_N".to_owned() },
            Marker { start: 800, text: "verse".to_owned() },
        ],
        repairs: Vec::new(),
    }
}

#[test]
fn remi_is_what_is_published() {
    let remi = Representation::Remi.vocabulary();
    insta::assert_snapshot!(words(remi, &sketch()).replace(" Bar", "\nBar").replace(" Beat", "\n  Beat"), @r"
    Bar_None
      Beat_0 Chord_A#_/o7 Tempo_119 Note_Pitch_67 Note_Velocity_64 Note_Duration_480 Note_Pitch_64 Note_Velocity_70 Note_Duration_480
      Beat_12 Chord_N_N Note_Pitch_32 Note_Velocity_40 Note_Duration_0
    Bar_None
      Beat_0 Tempo_155
      Beat_1 Note_Pitch_98 Note_Velocity_86 Note_Duration_1920
    Bar_None
    ");
}

#[test]
fn groove_is_what_is_published() {
    let groove = Representation::Groove.vocabulary();
    let piece = MusicPiece {
        tracks: vec![
            Track { drums: true, ..track("", [note(0, 0, 36, 90), note(12 * 5 + 3, 24, 38, 90)]) },
            track("Electric Bass", [note(0, 15, 40, 90)]),
            track("piano", [note(0, 6, 60, 90)]),
            track("organ", [note(0, 3, 60, 90), note(3, 3, 62, 90)]),
        ],
        ..MusicPiece::empty(12)
    };
    insta::assert_snapshot!(words(groove, &piece).replace(" time", "\n  time"), @r"
    bos note_on_1_36 note_off_1_36 note_on_0_40 note_on_2_60
      time_shift_0_3 note_off_2_60 note_on_2_62
      time_shift_0_6 note_off_2_62
      time_shift_1_3 note_off_0_40
      time_shift_2_0
      time_shift_2_0
      time_shift_0_3 note_on_1_38
      time_shift_2_0
      time_shift_0_3 note_off_1_38
    ");
    // the names of Band-in-a-Box: two bars of count-in go, its bass is a bass whatever its program
    let band = MusicPiece {
        tracks: vec![
            track("BB Guitar", [note(96, 12, 50, 1)]),
            track("BB Bass", [note(0, 5, 30, 1), note(108, 12, 31, 1)]),
        ],
        ..MusicPiece::empty(12)
    };
    assert_eq!(
        words(groove, &band),
        "bos note_on_2_50 time_shift_1_0 note_off_2_50 note_on_0_31 time_shift_1_0 note_off_0_31"
    );
}

#[test]
fn time_shifts_are_read_back() {
    for from in 0..60 {
        for to in from..140 {
            let now = groove::time_shifts(from, to).fold(from, |now, shift| match shift {
                Groove::TimeShift(beats, tick) => groove::after_shift(now, beats, tick),
                other => panic!("{other}"),
            });
            assert_eq!(now, to);
        }
        assert_eq!(groove::time_shifts(from, from).count(), 0);
    }
}

#[test]
fn rounding_is_to_even() {
    let halves: Vec<u64> = (0..9).map(|ticks| rescale(ticks, 8, 4)).collect();
    assert_eq!(halves, [0, 0, 1, 2, 2, 2, 3, 4, 4]);
    assert_eq!(rescale(u64::MAX, 1, u32::MAX), u64::MAX);
}

#[test]
fn midi_is_read_back() {
    let piece = sketch();
    let read = MusicPiece::from_midi(&piece.to_midi().unwrap()).unwrap();
    assert_eq!((read.resolution, read.notes(), read.end()), (100, piece.notes(), piece.end()));
    assert_eq!(read.markers, piece.markers);
    for (read, written) in read.tracks.iter().zip(&piece.tracks) {
        let mut notes = [read.notes.clone(), written.notes.clone()];
        notes.iter_mut().for_each(|notes| notes.sort());
        assert_eq!((&read.name, read.program, read.drums), (&written.name, written.program, written.drums));
        assert_eq!(notes[0], notes[1]);
    }
    for (read, written) in read.tempos.iter().zip(&piece.tempos) {
        // MIDI says microseconds a beat
        assert!(read.start == written.start && (read.beats_per_minute - written.beats_per_minute).abs() < 1e-3);
    }
}

#[test]
fn what_midi_cannot_say_is_an_error() {
    let bad = [
        MusicPiece { resolution: 0, ..sketch() },
        MusicPiece { resolution: 1 << 15, ..sketch() },
        MusicPiece { tracks: vec![track("", [note(0, 1, 128, 1)])], ..sketch() },
        MusicPiece { tracks: vec![track("", [note(1 << 30, 1, 1, 1)])], ..sketch() },
        MusicPiece { tempos: vec![Tempo { start: 0, beats_per_minute: 0.0 }], ..sketch() },
    ];
    for piece in bad {
        assert!(piece.to_midi().unwrap_err().contains("out of range"));
    }
    let mut long = sketch();
    long.tracks[0].notes.push(note(400 << 20, 1, 60, 60));
    for representation in Representation::ALL {
        let error = representation.vocabulary().tokens(&long).unwrap_err().to_string();
        assert!(error.contains("16384"), "{error}");
    }
    let mut frames = sketch().to_midi().unwrap();
    frames[12] = 0xe7;
    assert!(MusicPiece::from_midi(&frames).unwrap_err().contains("frames"));
    assert!(MusicPiece::from_midi(b"RIFF").unwrap_err().contains("not a MIDI file"));
}

#[test]
fn copies_are_transposed_within_the_words() {
    let remi = Representation::Remi.vocabulary();
    let piece =
        MusicPiece { tracks: vec![track("", [note(0, 480, 25, 60), note(0, 480, 60, 60)])], ..MusicPiece::empty(480) };
    let mut seen = std::collections::BTreeSet::new();
    for copy in 0..200 {
        let tokens = remi.augmented(&piece, 7, copy).unwrap();
        assert_eq!(tokens, remi.augmented(&piece, 7, copy).unwrap());
        let pitches: Vec<u8> = remi.piece(&tokens).tracks[0].notes.iter().map(|note| note.pitch).collect();
        assert_eq!(pitches[0] - pitches[1], 35);
        seen.insert(i32::from(pitches[1]) - 25);
    }
    assert_eq!(seen, (-3..=6).collect(), "22 is the lowest pitch with a word");
}

#[test]
fn groove_copies_keep_one_harmony_and_the_drums_pitch() {
    let groove = Representation::Groove.vocabulary();
    let line = |pitch| (0..40u64).map(|at| note(48 * at, 12, pitch, 60)).collect::<Vec<_>>();
    let piece = MusicPiece {
        tracks: vec![
            track("BB Bass", line(40)),
            Track { drums: true, ..track("BB Drums", line(36)) },
            track("BB Guitar", line(60)),
            track("BB Piano", line(70)),
            track("BB Strings", []),
        ],
        ..MusicPiece::empty(12)
    };
    let (mut shifts, mut cut, mut dropped) = (std::collections::BTreeSet::new(), 0, 0);
    for copy in 0..400 {
        let tracks = groove.piece(&groove.augmented(&piece, 1, copy).unwrap()).tracks;
        assert!(tracks[1].notes.iter().all(|note| note.pitch == 36));
        shifts.extend(tracks[0].notes.iter().map(|note| i32::from(note.pitch) - 40));
        let harmony = tracks[2].notes.first().map(|note| note.pitch);
        assert!(harmony.is_none_or(|pitch| (55..=66).contains(&pitch) || (65..=76).contains(&pitch)));
        let longest = tracks.iter().map(|track| track.notes.len()).max().unwrap();
        cut += usize::from(longest < 38);
        dropped += usize::from(tracks.iter().any(|track| track.notes.is_empty()));
    }
    assert_eq!(shifts, (-5..=6).collect());
    // expected 100 and 400 (1 - 0.9^2) = 76; standard deviations 8.7 and 7.8
    assert!((65..135).contains(&cut) && (40..112).contains(&dropped), "{cut} {dropped}");
}

#[test]
fn rules_keep_time_going_forward() {
    let remi = Representation::Remi.vocabulary();
    let allowed = |text: &str, next: &str| {
        let vocabulary = if text.starts_with("Bar") { remi } else { Representation::Groove.vocabulary() };
        let mut rules = vocabulary.rules();
        vocabulary.parse(text).unwrap().into_iter().for_each(|token| rules.take(token));
        rules.allows(vocabulary.id(next).unwrap())
    };
    assert!(allowed("Bar_None Beat_4", "Beat_4") && !allowed("Bar_None Beat_4", "Beat_3"));
    assert!(allowed("Bar_None Beat_4 Bar_None", "Beat_0") && !allowed("Bar_None", "PAD_None"));
    assert!(allowed("Bar_None", "EOS_None"));
    assert!(!allowed("bos", "note_off_0_60") && allowed("bos note_on_0_60", "note_off_0_60"));
    assert!(!allowed("bos note_on_0_60 note_off_0_60", "note_off_0_60"));
    assert!(!allowed("bos time_shift_0_5", "time_shift_0_5") && allowed("bos time_shift_0_5", "time_shift_0_6"));
    assert!(allowed("bos time_shift_0_5", "time_shift_1_0") && !allowed("bos", "bos") && allowed("bos", "eos"));
    assert!(!remi.rules().allows(999));
}

#[test]
fn prompts_are_the_first_bars() {
    let piece = MusicPiece {
        tracks: vec![track("", (0..40).map(|beat| note(12 * beat, 12, 60, 60)).collect::<Vec<_>>())],
        ..MusicPiece::empty(12)
    };
    for representation in Representation::ALL {
        let vocabulary = representation.vocabulary();
        let tokens = vocabulary.tokens(&piece).unwrap();
        for bars in 0..=10 {
            let prompt = vocabulary.piece(&tokens[..vocabulary.prompt_len(&tokens, bars)]);
            let ticks = u64::from(prompt.resolution);
            let starts = prompt.tracks.iter().flat_map(|track| &track.notes).map(|note| note.start / ticks);
            // what sounds at the end of a prompt of grooves has not ended yet
            let open = u64::from(representation == Representation::Groove && bars > 0);
            assert_eq!(starts.collect::<Vec<_>>(), (0..(4 * bars).min(40) - open).collect::<Vec<_>>(), "{bars} bars");
        }
    }
}

/// Bars beyond all counting are all there are.
#[test]
fn any_number_of_bars_makes_a_prompt() {
    let piece =
        MusicPiece { tracks: vec![track("", [note(0, 12, 60, 60), note(480, 12, 62, 60)])], ..MusicPiece::empty(12) };
    for representation in Representation::ALL {
        let vocabulary = representation.vocabulary();
        let tokens = vocabulary.tokens(&piece).unwrap();
        for bars in [1 << 60, u64::MAX / 48 + 1, u64::MAX] {
            assert_eq!(vocabulary.prompt_len(&tokens, bars), tokens.len(), "{bars}");
        }
    }
}

/// Notes of a position are written from high to low by the pitch that is written, in a piece as in its copies.
#[test]
fn folded_pitches_are_in_order() {
    // 120 is written as 96, 10 as 22
    let notes = [note(0, 12, 120, 60), note(0, 12, 100, 60), note(0, 12, 10, 60), note(0, 12, 20, 60)];
    let piece = MusicPiece { tracks: vec![track("", notes)], ..MusicPiece::empty(12) };
    let vocabulary = Representation::Remi.vocabulary();
    let pitches = |tokens: &[u32]| -> Vec<i32> {
        let words = vocabulary.spell(tokens);
        words.split(' ').filter_map(|word| word.strip_prefix("Note_Pitch_")?.parse().ok()).collect()
    };
    let written = pitches(&vocabulary.tokens(&piece).unwrap());
    assert_eq!(written, [100, 96, 32, 22]);
    for number in 0..20 {
        let copy = pitches(&vocabulary.augmented(&piece, 0, number).unwrap());
        let by = copy[0] - written[0];
        assert!(copy.iter().zip(&written).all(|(copy, note)| copy - note == by), "{copy:?}");
    }
}

/// All pairs, one by one.
fn pairs_of_notes(piece: &MusicPiece) -> Vec<u64> {
    let notes: Vec<&Note> = piece.tracks.iter().flat_map(|track| &track.notes).collect();
    let beats = |note: &Note| note.start as f64 / f64::from(piece.resolution);
    let mut counts = vec![0; 41 * 24];
    for (at, first) in notes.iter().enumerate() {
        for (other, second) in notes.iter().enumerate() {
            let interval = i32::from(second.pitch) - i32::from(first.pitch);
            let time = beats(second) - beats(first);
            if at != other && second.start >= first.start && time < 4.0 - 1e-9 && interval.abs() <= 20 {
                let bin = (0..24).rev().find(|bin| f64::from(*bin) * (1.0 / 6.0) <= time).unwrap();
                counts[(interval + 20) as usize * 24 + bin as usize] += 1;
            }
        }
    }
    counts
}

/// A million notes at once are as many pairs as no loop ends over.
#[test]
fn style_takes_time_by_notes_not_by_pairs() {
    let notes: Vec<Note> = (0..1_000_000).map(|at| note(at / 500_000, 12, 30 + (at % 60) as u8, 64)).collect();
    let piece = MusicPiece { tracks: vec![track("", notes)], ..MusicPiece::empty(12) };
    let clock = std::time::Instant::now();
    let counted = time_pitch(&[piece]);
    assert!(clock.elapsed().as_secs() < 30, "{:?}", clock.elapsed());
    assert!((counted.density.iter().sum::<f64>() / 6.0 - 1.0).abs() < 1e-9);
}

#[test]
fn style_counts_what_notes_do() {
    // two notes together, one half a beat later
    let piece = MusicPiece {
        tracks: vec![Track { drums: true, ..track("", [note(0, 6, 60, 1), note(0, 24, 64, 1), note(54, 30, 62, 1)]) }],
        ..MusicPiece::empty(12)
    };
    let pieces = [piece];
    let pairs = time_pitch(&pieces);
    let at = |interval: i32, bin: usize| pairs.density[(interval + 20) as usize * 24 + bin];
    // both ways at one time; the third is 4.5 beats later
    assert_eq!((at(4, 0), at(-4, 0), pairs.density.iter().sum::<f64>()), (3.0, 3.0, 6.0));
    let onsets = onset_duration(&pieces, Onset::Beats);
    let share = |row: usize, column: usize| onsets.density[row * 12 + column] / 36.0;
    assert_eq!((share(0, 3), share(0, 11), share(3, 11)), (0.5, 0.5, 0.0), "2.5 beats are not counted, 2 are");
    let drums = onset_drum(&pieces, Onset::Beats);
    assert!((drums.density[3 * 128 + 62] - 2.0).abs() < 1e-12);
    // 54 is tick 6 of the second bar: beyond four
    assert_eq!(onset_drum(&pieces, Onset::Published).density[128 * 23 + 62], 0.0);
    assert!((drums.similarity(&drums).unwrap() - 1.0).abs() < 1e-12);
    assert_eq!(drums.similarity(&onset_drum(&[], Onset::Beats)), None);
}

prop_compose! {
    fn pieces()(notes in prop::collection::vec((0u64..4000, 0u64..2500, 0u8..128, 1u8..128), 1..60), resolution in 1u32..1000)
        -> MusicPiece
    {
        let notes: Vec<Note> = notes.into_iter().map(|(start, duration, pitch, velocity)| note(start, duration, pitch, velocity)).collect();
        MusicPiece { tracks: vec![track("", notes)], ..MusicPiece::empty(resolution) }
    }
}

proptest! {
    /// Events to a piece to MIDI to events: what the grid holds survives. MIDI cannot say which of two notes of one pitch
    /// ends, so there is one note a pitch.
    #[test]
    fn events_survive_midi(mut piece in pieces()) {
        let mut seen = std::collections::HashSet::new();
        piece.tracks[0].notes.retain(|note| seen.insert(remi::fold(note.pitch)));
        for representation in Representation::ALL {
            let vocabulary = representation.vocabulary();
            let tokens = vocabulary.tokens(&piece).unwrap();
            let once = vocabulary.piece(&tokens);
            let again = vocabulary.tokens(&MusicPiece::from_midi(&once.to_midi().unwrap()).unwrap()).unwrap();
            if representation == Representation::Remi {
                // notes of one pitch at one position may change places
                let sorted = |mut tokens: Vec<u32>| { tokens.sort(); tokens };
                prop_assert_eq!(sorted(again), sorted(tokens));
            } else {
                let read = vocabulary.piece(&again);
                prop_assert_eq!(&vocabulary.piece(&vocabulary.tokens(&read).unwrap()), &read);
                prop_assert_eq!(read.notes(), piece.notes());
            }
        }
    }

    #[test]
    fn style_counts_all_pairs(piece in pieces()) {
        let counts = pairs_of_notes(&piece);
        let all: u64 = counts.iter().sum();
        let share = |count: &u64| if all == 0 { 0.0 } else { *count as f64 / all as f64 / (1.0 / 6.0) };
        prop_assert_eq!(time_pitch(&[piece]).density, counts.iter().map(share).collect::<Vec<f64>>());
    }

    #[test]
    fn whatever_is_sampled_can_be_written(tokens in prop::collection::vec(0u32..800, 0..200)) {
        for representation in Representation::ALL {
            let vocabulary = representation.vocabulary();
            let mut rules = vocabulary.rules();
            for token in &tokens {
                rules.take(*token);
                prop_assert!((0..800).any(|token| rules.allows(token)));
            }
            prop_assert!(vocabulary.piece(&tokens).to_midi().is_ok());
        }
    }

    /// Damaged bytes are an error in words, or a piece that vocabularies can take, never a panic or a note that no file has.
    #[test]
    fn hostile_midi_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..190), at in 0usize..300, value: u8) {
        let short = [b"MThd\0\0\0\x06\0\x01\0\x01\0\x60MTrk\0\0\0\xc8", &bytes[..]].concat();
        let mut changed = sketch().to_midi().unwrap();
        let place = at % changed.len();
        changed[place] = value;
        for bytes in [short, changed] {
            match MusicPiece::from_midi(&bytes) {
                Err(message) => prop_assert!(!message.is_empty()),
                Ok(piece) => {
                    let mut notes = piece.tracks.iter().flat_map(|track| &track.notes);
                    prop_assert!(notes.all(|note| note.pitch < 128 && (1..128).contains(&note.velocity)));
                    prop_assert!(piece.notes() <= bytes.len() / 2 && piece.tracks.iter().all(|track| track.program < 128));
                }
            }
        }
        let sound = sketch().to_midi().unwrap();
        let cut = at % (sound.len() - 1);
        prop_assert!(MusicPiece::from_midi(&sound[..cut]).is_err() || MusicPiece::from_midi(&sound[..cut]).unwrap().repairs.len() == 1);
    }
}

#[test]
fn pitches_fold_by_octaves() {
    for pitch in 0..128u8 {
        let folded = remi::fold(pitch);
        assert!(remi::PITCHES.contains(&folded) && folded % 12 == pitch % 12);
    }
    assert_eq!(Remi::Bar.to_string(), "Bar_None");
}

#[test]
fn a_piece_is_like_itself_and_its_parts_are_the_whole() {
    let piece = super::loops::piece(1, 4, 16);
    let alike = |pieces: &[MusicPiece]| style::likeness(&piece, pieces, style::Onset::Beats);
    let own = alike(&[piece.clone(), piece.clone()]);
    for found in [own.time_pitch, own.onset_duration, own.onset_drum] {
        assert!((found.unwrap() - 1.0).abs() < 1e-12, "{own:?}");
    }
    let parts: Vec<MusicPiece> = (0..4).map(|number| style::part(&piece, number, 4)).collect();
    assert_eq!(parts.iter().map(MusicPiece::notes).sum::<usize>(), piece.notes());
    assert!(parts.iter().all(|part| alike(std::slice::from_ref(part)).onset_drum.unwrap() > 0.99));
    let other = alike(&[super::loops::piece(1, 5, 16)]);
    assert!(other.time_pitch.unwrap() < 0.95, "{other:?}");
    let silent = MusicPiece { tracks: Vec::new(), ..piece.clone() };
    assert_eq!(alike(&[silent]).time_pitch, Some(0.0));
    let solo = MusicPiece { tracks: piece.tracks[..1].to_vec(), ..piece.clone() };
    assert_eq!(style::likeness(&solo, std::slice::from_ref(&piece), style::Onset::Beats).onset_drum, None);
}
