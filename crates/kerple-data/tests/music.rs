//! Corpora of music: folders and archives of MIDI files.

use kerple_data::music::{MusicPiece, Note, Representation, Track};
use kerple_data::{Corpus, CorpusSummary, PrepareOptions, Sources, Split, prepare};
use std::fs;
use std::path::Path;

/// Two bars that differ from piece to piece.
fn piece(seed: u64) -> MusicPiece {
    let note = |at: u64| Note {
        start: 240 * at,
        duration: 120 + 120 * (seed >> (at % 3) & 1),
        pitch: 30 + ((at * 7 + seed * (at + 1)) % 71) as u8,
        velocity: 64,
    };
    let track = Track { name: "piano".to_owned(), notes: (0..16).map(note).collect(), ..Track::default() };
    MusicPiece { tracks: vec![track], ..MusicPiece::empty(480) }
}

fn archive(path: &Path, pieces: impl IntoIterator<Item = u64>) {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: String, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes).unwrap();
    };
    add("README.md".to_owned(), b"about the pieces");
    add("._000.mid".to_owned(), b"not MIDI");
    for seed in pieces {
        // longer than the 100 bytes of a plain header
        add(format!("{}/{seed:03}.mid", "folder".repeat(20)), &piece(seed).to_midi().unwrap());
    }
    fs::write(path, zstd::encode_all(&tar.into_inner().unwrap()[..], 3).unwrap()).unwrap();
}

fn run(input: &Path, out: &Path, tokenizer: &str, augment: u64) -> kerple_data::Result<CorpusSummary> {
    let tokenizer = tokenizer.to_owned();
    prepare(&PrepareOptions { tokenizer, augment, ..PrepareOptions::new(Sources::paths(&[input]), out) }, &mut |_| {})
}

#[test]
fn archives_and_folders_give_the_same_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let [packed, plain] = ["packed", "plain"].map(|name| folder.path().join(name));
    for (split, seeds) in [("train", 0..20), ("valid", 20..23), ("test", 23..26)] {
        fs::create_dir_all(plain.join(split)).unwrap();
        fs::create_dir_all(&packed).unwrap();
        archive(&packed.join(format!("{split}.tar.zst")), seeds.clone());
        for seed in seeds {
            piece(seed).write(&plain.join(split).join(format!("{seed:03}.MID"))).unwrap();
        }
        fs::write(plain.join(split).join("about.txt"), "two bars each").unwrap();
    }
    for representation in Representation::ALL {
        let name = representation.name();
        let out = [&packed, &plain].map(|input| {
            let out = folder.path().join(format!("{name}-{}", input.file_name().unwrap().display()));
            let summary = run(input, &out, name, 0).unwrap();
            assert_eq!([summary.train.documents, summary.valid.documents, summary.test.documents], [20, 3, 3]);
            assert_eq!((summary.tokenizer.as_str(), summary.warnings.len()), (name, 0));
            Corpus::open(&out).unwrap()
        });
        assert_eq!(out[0].content(), out[1].content());
        let (tokens, tokenizer) = (out[0].split(Split::Test), out[0].tokenizer().unwrap());
        let vocabulary = tokenizer.music_vocabulary().unwrap();
        let mut first = tokens.read(tokens.document(0)).unwrap();
        assert_eq!(first.pop(), Some(vocabulary.end()));
        assert_eq!(first, vocabulary.tokens(&piece(23)).unwrap());
        assert_eq!(tokenizer.encode(&tokenizer.decode(&first)).unwrap(), first);
        let error = out[0].bytes_in(Split::Test, 0..4).unwrap_err().to_string();
        assert!(error.contains("do not represent bytes of text"), "{error}");
    }
}

/// Folders in an archive do not count as splits, and its other files are left out: both are said.
#[test]
fn what_an_archive_has_besides_pieces_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let header = |size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header
    };
    for seed in 0..60 {
        let (bytes, split) = (piece(seed).to_midi().unwrap(), ["train", "validation", "test"][seed as usize % 3]);
        tar.append_data(&mut header(bytes.len()), format!("set/{split}/{seed}.mid"), &bytes[..]).unwrap();
    }
    tar.append_data(&mut header(2), "set/README.txt", &b"hi"[..]).unwrap();
    tar.append_data(&mut header(2), "set/.DS_Store", &b"hi"[..]).unwrap();
    tar.append_data(&mut header(2), "set/test/more.mid.gz", &b"hi"[..]).unwrap();
    let mut link = header(0);
    link.set_entry_type(tar::EntryType::Link);
    tar.append_link(&mut link, "set/test/same.mid", "set/train/0.mid").unwrap();
    let path = folder.path().join("a.tar");
    fs::write(&path, tar.into_inner().unwrap()).unwrap();
    let summary = run(&path, &folder.path().join("out"), "remi", 0).unwrap();
    let skipped: Vec<&str> = summary.skipped.iter().map(|line| line.split_once("a.tar: ").unwrap().1).collect();
    assert_eq!(
        skipped,
        [
            "its file set/README.txt is not MIDI",
            "its file set/test/more.mid.gz is compressed MIDI; decompress it",
            "its file set/test/same.mid is a link; links in archives are not followed"
        ]
    );
    let [said] = &summary.warnings[..] else { panic!("{:?}", summary.warnings) };
    assert!(said.contains("names in the archive look like splits and are ignored: set/train/0.mid"), "{said}");
    let empty = folder.path().join("empty.mid");
    MusicPiece::empty(480).write(&empty).unwrap();
    let error = run(&empty, &folder.path().join("none"), "remi", 0).unwrap_err().to_string();
    assert!(error.ends_with("empty.mid: the file contains no notes to prepare"), "{error}");
}

#[test]
fn copies_are_only_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    fs::create_dir_all(&input).unwrap();
    (0..60).for_each(|seed| piece(seed).write(&input.join(format!("{seed}.mid"))).unwrap());
    let one = run(&input, &folder.path().join("one"), "remi", 0).unwrap();
    let many = run(&input, &folder.path().join("many"), "remi", 4).unwrap();
    assert_eq!(many.train.documents, 5 * one.train.documents);
    assert_eq!((&many.valid, &many.test), (&one.valid, &one.test));
    assert!(many.assignment.ends_with("4 altered copies of each training piece"), "{}", many.assignment);
    let error = run(&input, &folder.path().join("none"), "byte", 4).unwrap_err();
    assert!(error.to_string().contains("--augment 4: only music is augmented") && error.is_misuse(), "{error}");
}

#[test]
fn damaged_pieces_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = piece(1).to_midi().unwrap();
    bytes.truncate(bytes.len() - 9);
    fs::write(folder.path().join("cut.mid"), &bytes).unwrap();
    let out = folder.path().join("out");
    let error = run(&folder.path().join("cut.mid"), &out, "remi", 0).unwrap_err().to_string();
    assert!(error.contains("cut.mid: track 2 is truncated"), "{error}");
    archive(&folder.path().join("all.tar.zst"), 0..3);
    let whole = zstd::decode_all(&fs::read(folder.path().join("all.tar.zst")).unwrap()[..]).unwrap();
    fs::write(folder.path().join("cut.tar"), &whole[..whole.len() - 2500]).unwrap();
    let error = run(&folder.path().join("cut.tar"), &out, "remi", 0).unwrap_err().to_string();
    assert!(error.contains("cut.tar, entry 5"), "{error}");
    assert!(!out.exists());
    let error = MusicPiece::read(&folder.path().join("none.mid")).unwrap_err();
    assert_eq!(error.hint(), "check the path");
}

#[test]
fn words_in_text_are_music_too() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = Representation::Groove.vocabulary();
    let lines: String = (0..80)
        .map(|seed| {
            let text = vocabulary.spell(&vocabulary.tokens(&piece(seed)).unwrap());
            serde_json::json!({ "text": text }).to_string() + "\n"
        })
        .collect();
    let path = folder.path().join("pieces.jsonl");
    fs::write(&path, lines).unwrap();
    let summary = run(&path, &folder.path().join("out"), "groove", 0).unwrap();
    assert_eq!(summary.train.documents + summary.valid.documents + summary.test.documents, 80);
    fs::write(&path, "{\"text\": \"bos note_on_0_60 la\"}\n").unwrap();
    let error = run(&path, &folder.path().join("bad"), "groove", 0).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("`la` is not a word"), "{error}");
}

/// A damaged file, a damaged entry, a null row and a broken line: refused as they come, or named, counted and passed over.
#[test]
fn damaged_documents_are_passed_over_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (midi, text) = (folder.path().join("midi"), folder.path().join("text"));
    fs::create_dir_all(&midi).unwrap();
    fs::create_dir_all(&text).unwrap();
    for seed in 0..60 {
        piece(seed).write(&midi.join(format!("{seed:03}.mid"))).unwrap();
    }
    let sound = run(&midi, &folder.path().join("sound"), "remi", 0).unwrap();
    fs::write(midi.join("0005.mid"), "no MIDI").unwrap();
    fs::write(midi.join("0007.mid"), "").unwrap();
    let lines: Vec<String> = (0..80).map(|at| format!("{{\"text\":\"line {at}\"}}")).collect();
    fs::write(text.join("a.jsonl"), lines.join("\n") + "\n{\"text\":null}\n{\"text\":\"last\"}\n").unwrap();
    for (input, tokenizer, bad, named) in [(&midi, "remi", 2, "0005.mid"), (&text, "byte", 1, "a.jsonl, line 81")] {
        let out = folder.path().join(tokenizer);
        let prepared = |max_bad_documents: u64| {
            let tokenizer = tokenizer.to_owned();
            let options =
                PrepareOptions { tokenizer, max_bad_documents, ..PrepareOptions::new(Sources::paths(&[input]), &out) };
            prepare(&options, &mut |_| {})
        };
        let error = prepared(bad - 1).unwrap_err();
        assert!(error.hint().contains("--max-bad-documents N") && !out.exists(), "{error}");
        let summary = prepared(bad).unwrap();
        assert_eq!(summary.damaged.len() as u64, bad);
        assert!(summary.damaged[0].contains(named), "{:?}", summary.damaged);
        let said = summary.to_string();
        assert!(said.contains(&format!("skipped {bad} damaged documents\n")) && said.contains(named), "{said}");
        assert_eq!(Corpus::open(&out).unwrap().summary(), &summary);
    }
    let of = |name: &str| Corpus::open(&folder.path().join(name)).unwrap().content().to_owned();
    assert_eq!(of("remi"), sound.content, "what is passed over changes nothing of the rest");
}

#[test]
fn copies_and_skips_have_limits() {
    let folder = tempfile::tempdir().unwrap();
    piece(1).write(&folder.path().join("a.mid")).unwrap();
    let out = folder.path().join("out");
    let error = run(folder.path(), &out, "remi", u64::MAX).unwrap_err();
    assert!(error.is_misuse() && error.to_string().contains("up to 1000 copies"), "{error}");
    let inputs = Sources::paths(&[folder.path()]);
    let options = PrepareOptions { max_bad_documents: 1 << 40, ..PrepareOptions::new(inputs, &out) };
    assert!(prepare(&options, &mut |_| {}).unwrap_err().to_string().contains("up to 10000"));
    assert!(!out.exists());
}

/// What is repaired is named in the summary, with the file; a karaoke file is one of MIDI.
#[test]
fn repaired_pieces_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    fs::create_dir_all(&input).unwrap();
    (0..60).for_each(|seed| piece(seed).write(&input.join(format!("{seed}.mid"))).unwrap());
    let sound = run(&input, &folder.path().join("sound"), "groove", 0).unwrap();
    assert!(sound.repaired.is_empty());
    let odd = [piece(70).to_midi().unwrap(), b"\0\0\0".to_vec()].concat();
    fs::write(input.join("odd.kar"), odd).unwrap();
    let summary = run(&input, &folder.path().join("out"), "groove", 0).unwrap();
    let documents =
        |summary: &CorpusSummary| Split::ALL.map(|split| summary.split(split).documents).iter().sum::<u64>();
    assert_eq!(documents(&summary), documents(&sound) + 1);
    assert!(summary.repaired.len() == 1 && summary.repaired[0].contains("odd.kar: 3 bytes after"), "{summary}");
    assert!(summary.to_string().contains("repaired: ") && Corpus::open(&folder.path().join("out")).is_ok());
}
