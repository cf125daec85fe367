use crate::music::{MusicPiece, Note, Track};

/// A file of these tracks, which are whole chunks.
fn file(format: u16, stated: u16, chunks: &[Vec<u8>]) -> Vec<u8> {
    let numbers = [format, stated, 480].map(u16::to_be_bytes).concat();
    [b"MThd\0\0\0\x06", &numbers[..], &chunks.concat()].concat()
}

fn chunk(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    [&name[..], &(body.len() as u32).to_be_bytes(), body].concat()
}

const END: &[u8] = b"\0\xff\x2f\0";

fn track(events: &[u8]) -> Vec<u8> {
    chunk(b"MTrk", &[events, END].concat())
}

/// A note of 96 ticks, 0 ticks after what is before it.
fn note(channel: u8, pitch: u8) -> Vec<u8> {
    vec![0, 0x90 | channel, pitch, 64, 96, 0x80 | channel, pitch, 0]
}

fn program(channel: u8, program: u8) -> Vec<u8> {
    vec![0, 0xc0 | channel, program]
}

fn read(bytes: &[u8]) -> MusicPiece {
    MusicPiece::from_midi(bytes).unwrap()
}

/// Program and pitches of each track.
fn played(piece: &MusicPiece) -> Vec<(u8, Vec<u8>)> {
    piece.tracks.iter().map(|track| (track.program, track.notes.iter().map(|note| note.pitch).collect())).collect()
}

/// A program counts from its moment on, the last before a note, in whichever track it is.
#[test]
fn a_program_belongs_to_its_channel_and_moment() {
    let twice = [program(1, 0), program(1, 33), note(1, 36)].concat();
    assert_eq!(played(&read(&file(1, 1, &[track(&twice)]))), [(33, vec![36])]);
    let changing = [program(0, 73), note(0, 60), program(0, 33), note(0, 36), program(0, 73), note(0, 62)].concat();
    for format in [0, 1] {
        let piece = read(&file(format, 1, &[track(&changing)]));
        assert_eq!(played(&piece), [(73, vec![60, 62]), (33, vec![36])]);
        assert_eq!(piece.tracks[0].voice, piece.tracks[1].voice);
        assert!(piece.repairs.is_empty());
    }
    // the conductor sets it, now and at tick 96
    let conductor = [program(2, 33), vec![96, 0xc2, 40]].concat();
    let notes = [note(2, 36), note(2, 70)].concat();
    let piece = read(&file(1, 2, &[track(&conductor), track(&notes)]));
    assert_eq!((played(&piece), piece.repairs.len()), (vec![(33, vec![36]), (40, vec![70])], 0));
    // events at one tick are in the order of tracks, which is said where another would give something else
    let piece = read(&file(1, 2, &[track(&notes), track(&conductor)]));
    assert_eq!(played(&piece), [(0, vec![36]), (33, vec![70])]);
    insta::assert_snapshot!(piece.repairs.join("\n"), @r"
    track 1 plays on channel 3 at tick 0, where track 2 sets its program: the notes come first
    track 1 plays on channel 3 at tick 96, where track 2 sets its program: the notes come first
    ");
    let both = [program(0, 1), program(0, 2)].map(|program| track(&[program, note(0, 60)].concat()));
    let piece = read(&file(1, 2, &both));
    assert!(piece.repairs[0].contains("tracks 1 and 2 set the program of channel 1 at tick 0"), "{:?}", piece.repairs);
    // channels of another port are others
    let port = [vec![0, 0xff, 0x21, 1, 1], program(0, 33), note(0, 36)].concat();
    let piece = read(&file(1, 2, &[track(&[program(0, 5), note(0, 60)].concat()), track(&port)]));
    assert_eq!((played(&piece), piece.repairs.len()), (vec![(5, vec![60]), (33, vec![36])], 0));
}

/// More tracks than channels keep their programs on the way through a file.
#[test]
fn many_tracks_are_read_back() {
    let note = Note { start: 0, pitch: 60, duration: 9, velocity: 64 };
    let of = |program: u8, drums| Track { program, drums, notes: vec![note], ..Track::default() };
    let tracks = (0..40).map(|program| of(program, program % 8 == 7)).collect();
    let piece = MusicPiece { tracks, ..MusicPiece::empty(480) };
    let again = read(&piece.to_midi().unwrap());
    let facts = |piece: &MusicPiece| piece.tracks.iter().map(|track| (track.program, track.drums)).collect::<Vec<_>>();
    assert_eq!((facts(&again), again.repairs.len()), (facts(&piece), 0));
}

/// Files that other programs write beside the standard: read as their one reading, and what was repaired is said.
#[test]
fn files_beside_the_standard_are_read() {
    let (sound, one) = (track(&note(0, 60)), file(1, 1, &[track(&note(0, 60))]));
    let after_meta = [&[0, 0x90, 60, 64][..], b"\0\xff\x01\x02hi", &[96, 60, 0]].concat();
    let mut long = one.clone();
    long[14 + 7] += 40;
    let mut header = [b"MThd\0\0\0\x08", &one[8..14], &[1, 2]].concat();
    header.extend(&one[14..]);
    let riff = |body: &[u8]| {
        let data = [b"data", &(body.len() as u32).to_le_bytes()[..], body].concat();
        let kind = [b"RMIDDISP\x01\0\0\0x\0", &data[..]].concat();
        [b"RIFF", &(kind.len() as u32).to_le_bytes()[..], &kind].concat()
    };
    let open = [0, 0x90, 60, 64, 96, 0xff, 0x01, 0];
    let cases: [(Vec<u8>, &str); 14] = [
        (one.clone(), ""),
        (header, ""),
        (riff(&one), ""),
        (file(2, 1, std::slice::from_ref(&sound)), ""),
        (track_file(&[0, 0x90, 60, 64, 96, 60, 0]), ""),
        (file(1, 1, &[chunk(b"MTrk", &note(0, 60))]), "track 1 has no end-of-track event"),
        ([&one[..], b"\0\0\0 trailing"].concat(), "12 bytes after its last track are skipped"),
        (file(1, 1, &[chunk(b"XFIH", &[1; 9]), sound.clone()]), "its chunk `XFIH` of 9 bytes is skipped"),
        (track_file(&after_meta), "running status continues across meta events in track 1"),
        (file(1, 3, std::slice::from_ref(&sound)), "its header states 3 tracks; it has 1"),
        (file(0, 2, &[sound.clone(), track(&[])]), "its format 0 allows one track; it has 2, which are merged"),
        (long, "track 1 states 52 bytes; its events end after 12"),
        (track_file(&[&[0, 0xf8][..], &note(0, 60)].concat()), "system messages 0xf8 in track 1 are skipped"),
        (track_file(&open), "1 notes of track 1 have no end; they last until the track ends"),
    ];
    for (bytes, repair) in cases {
        let piece = MusicPiece::from_midi(&bytes).unwrap_or_else(|error| panic!("{repair}: {error}"));
        assert_eq!(piece.repairs.join("; "), repair);
        let expected = Note { start: 0, pitch: 60, duration: 96, velocity: 64 };
        assert_eq!((piece.notes(), piece.tracks[0].notes[0]), (1, expected), "{repair}");
    }
}

fn track_file(events: &[u8]) -> Vec<u8> {
    file(1, 1, &[track(events)])
}

/// What leaves more than one reading is an error that says where and why.
#[test]
fn what_has_to_be_guessed_is_refused() {
    let one = track_file(&note(0, 60));
    let mut short = one.clone();
    short[14 + 7] -= 6;
    let with = |at: usize, value: u8| {
        let mut bytes = one.clone();
        bytes[at] = value;
        bytes
    };
    let cases: [(Vec<u8>, &str); 14] = [
        (one[..one.len() - 5].to_vec(), "track 1 is truncated: it states 12 bytes, but 7 remain"),
        (short, "the track ends within an event"),
        (with(9, 3), "its format is 3"),
        (with(12, 0xe7), "frames"),
        (file(2, 2, &[track(&[]), track(&[])]), "format 2"),
        (file(1, 1, &[]), "it has no tracks; its header states 1"),
        ([&one[..], &one].concat(), "a second piece starts at byte"),
        (track_file(&[0, 60, 64]), "track 1, byte 23: data without a status byte"),
        (track_file(&[0, 0x90, 0xe0, 64]), "0xe0 is not a data byte"),
        (track_file(&[0, 0xf4]), "0xf4 is not a MIDI status byte"),
        (track_file(&[0xff, 0xff, 0xff, 0xff, 0x7f, 0x90, 60, 64]), "a number exceeds 268435455"),
        (file(1, 2, &[track(&[]), vec![0; 9]]), "track 2 of 2 is missing"),
        (b"RIFF\x04\0\0\0WAVE".to_vec(), "RIFF file of a kind other than RMID"),
        (b"MThd\0\0\0\x04\0\x01\0\x01".to_vec(), "its header has 4 bytes"),
    ];
    for (bytes, why) in cases {
        let error = MusicPiece::from_midi(&bytes).expect_err(why);
        assert!(error.contains(why), "{why}: {error}");
    }
    assert!(MusicPiece::from_midi(b"").unwrap_err().contains("not a MIDI file"));
}

/// Of two notes of a pitch that overlap, the first ends first; a note that begins with velocity 0 ends.
#[test]
fn overlapping_notes_end_in_their_order() {
    let events = [0, 0x90, 60, 64, 10, 60, 65, 20, 60, 0, 40, 60, 0];
    let piece = read(&track_file(&events));
    let notes: Vec<(u64, u64, u8)> =
        piece.tracks[0].notes.iter().map(|note| (note.start, note.duration, note.velocity)).collect();
    assert_eq!(notes, [(0, 30, 64), (10, 60, 65)]);
}

/// The name of a format-0 file is that of the piece where several channels share its track.
#[test]
fn the_name_of_a_piece_is_not_that_of_its_instruments() {
    let named = |notes: Vec<u8>| track(&[&b"\0\xff\x03\x04Bass"[..], &notes].concat());
    let piece = read(&file(0, 1, &[named([note(0, 60), note(1, 36)].concat())]));
    assert!(piece.tracks.len() == 2 && piece.tracks.iter().all(|track| track.name.is_empty()));
    assert_eq!(read(&file(0, 1, &[named(note(0, 60))])).tracks[0].name, "Bass");
}
