use super::list_ops::{evaluate, source, tokens};
use super::*;
use crate::examples::ExampleId;
use crate::split::Split;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Nobody stops what is opened with it.
static ON: AtomicBool = AtomicBool::new(false);

fn place(split: Split, index: u64) -> ExampleId {
    ExampleId { split, seed: 0, index }
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

/// Message and hint of what a task refuses.
fn refused(task: &LraTask, path: Option<&Path>) -> String {
    let error = task.open(path, &ON).err().expect("this is refused");
    format!("{error}\n{}", error.hint())
}

fn get(task: &LraTask, path: Option<&Path>, split: Split, index: u64, length: usize) -> (Vec<u32>, u32) {
    let example = task.open(path, &ON).unwrap().example(place(split, index), length).unwrap();
    assert_eq!(example.scored, [true]);
    (example.input, example.targets[0])
}

#[test]
fn expressions_are_evaluated() {
    let cases = [
        ("( ( ( ( [MIN 2 ) 9 ) 3 ) ] )", 2),
        ("( ( ( ( [MAX 2 ) 9 ) 3 ) ] )", 9),
        ("( ( ( ( [SM 7 ) 7 ) 2 ) ] )", 6),
        ("( ( ( ( ( [MED 3 ) 8 ) 7 ) 4 ) ] )", 5),
        ("( ( ( [MED ( ( ( [MIN 5 ) 6 ) ] ) ) 9 ) ] )", 7),
        ("4", 4),
    ];
    for (text, answer) in cases {
        let tokens = tokens(text).unwrap();
        assert_eq!((evaluate(&tokens), source(&tokens).as_deref()), (Ok(answer), Ok(text)), "{text}");
    }
    for wrong in ["[MAX 3", "[MAX ]", "]", "3 3", "[MAX 3 ] 4", ""] {
        assert!(evaluate(&tokens(wrong).unwrap()).is_err(), "{wrong}");
    }
    assert!(tokens("[MAX 12 ]").unwrap_err().contains("`12`"));
}

#[test]
fn generated_expressions_are_published_ones() {
    let task = LraTask::named("listops").unwrap();
    let source = task.open(None, &ON).unwrap();
    assert_eq!(Split::ALL.map(|split| source.count(split)), [Some(96_000), Some(2000), Some(2000)]);
    let mut lengths = Vec::new();
    for index in 0..300 {
        let example = source.example(place(Split::Train, index), 5000).unwrap();
        assert_eq!(evaluate(&example.input).unwrap(), example.targets[0]);
        lengths.push(example.input.len());
    }
    lengths.sort();
    assert!(lengths[0] > 500 && lengths[299] < 2000, "{lengths:?}");
    // measured of the original: 951; the median of 300 has a standard deviation of about 30
    assert!((830..1080).contains(&lengths[150]), "median {}", lengths[150]);
    let cut = source.example(place(Split::Train, 0), 100).unwrap().input;
    assert_eq!(cut[..], source.example(place(Split::Train, 0), 2000).unwrap().input[..100]);
}

/// Even where there are few expressions, none is in two splits.
#[test]
fn splits_of_expressions_are_disjoint() {
    let keys = ListOps { more_than: 3, fewer_than: 6, train: 400, valid: 100, test: 100, ..ListOps::default() };
    let task = LraTask::ListOps(keys);
    let source = task.open(None, &ON).unwrap();
    let [train, valid, test] = Split::ALL.map(|split| -> std::collections::BTreeSet<Vec<u32>> {
        let count = source.count(split).unwrap();
        (0..count).map(|index| source.example(place(split, index), 10).unwrap().input).collect()
    });
    assert!(train.is_disjoint(&valid) && train.is_disjoint(&test) && valid.is_disjoint(&test));
    let message = refused(&LraTask::ListOps(ListOps { more_than: 7, fewer_than: 8, ..keys }), None);
    assert!(message.contains("more_than = 7 and fewer_than = 8"), "{message}");
    let message = refused(&LraTask::ListOps(ListOps { depth: 1, ..keys }), None);
    assert!(message.contains("none has more than 3"), "{message}");
}

#[test]
fn expressions_have_a_size_that_fits() {
    let long = ListOps { fewer_than: 1_000_000_000_000, depth: 64, ..ListOps::default() };
    assert!(refused(&LraTask::ListOps(long), None).contains("fewer_than = 1000000000000 is out of range"));
    // what is drawn is bounded by what all draws take, not by their number
    let narrow = ListOps { more_than: (1 << 20) - 3, fewer_than: 1 << 20, depth: 30, ..ListOps::default() };
    let clock = std::time::Instant::now();
    assert!(refused(&LraTask::ListOps(narrow), None).contains("none has more than 1048573"));
    assert!(clock.elapsed().as_secs() < 30, "{:?}", clock.elapsed());
    for name in ["listops", "pathfinder", "lra_retrieval"] {
        for count in [0u64, 1 << 41, u64::MAX / 2] {
            let keys = serde_json::json!({ "valid": count }).as_object().unwrap().clone();
            let message = refused(&LraTask::named(name).unwrap().with_keys(keys).unwrap(), None);
            assert!(message.contains(&format!("data.task.valid = {count} is out of range")), "{message}");
        }
    }
}

/// A class cannot be told from nothing: what is empty is named when the data is opened, not met in training.
#[test]
fn empty_texts_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (lines, reviews, published) =
        (folder.path().join("lines"), folder.path().join("imdb"), folder.path().join("listops"));
    for name in ["train", "valid", "test"] {
        write(&lines, &format!("{name}.jsonl"), "{\"text\":\"a\",\"label\":0}\n");
        write(&reviews, &format!("{name}/pos/0.txt"), "good");
        write(&reviews, &format!("{name}/neg/0.txt"), "bad");
    }
    for name in ["train", "val", "test"] {
        write(&published, &format!("basic_{name}.tsv"), "Source\tTarget\n[MAX 3 ]\t3\n");
    }
    let (texts, expressions) = (LraTask::named("lra_text").unwrap(), LraTask::named("listops").unwrap());
    assert!(texts.open(Some(&lines), &ON).is_ok() && texts.open(Some(&reviews), &ON).is_ok());
    assert!(expressions.open(Some(&published), &ON).is_ok());
    // who no longer wants them does not wait for all of them
    for (task, path) in
        [(&texts, Some(&lines)), (&texts, Some(&reviews)), (&expressions, Some(&published)), (&expressions, None)]
    {
        let stopped = task.open(path.map(PathBuf::as_path), &AtomicBool::new(true));
        assert!(matches!(stopped.err(), Some(Error::Stopped)), "{} {path:?}", task.name());
    }
    write(&lines, "valid.jsonl", "{\"text\":\"a\",\"label\":0}\n\n{\"text\":\"\",\"label\":1}\n");
    assert!(refused(&texts, Some(&lines)).contains("valid.jsonl, line 3: the sequence is empty"));
    write(&reviews, "test/neg/0.txt", "");
    assert!(refused(&texts, Some(&reviews)).contains("test/neg/0.txt: the sequence is empty"));
    write(&published, "basic_val.tsv", "Source\tTarget\n\t3\n");
    assert!(refused(&expressions, Some(&published)).contains("basic_val.tsv, line 2: the sequence is empty"));
}

#[test]
fn published_expressions_are_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, answer) in [("train", 9), ("val", 8), ("test", 7)] {
        let text = format!(
            "Source\tTarget\r\n( ( ( [MAX {answer} ) 2 ) ] )\t{answer}\r\n( ( ( [MIN 9 ) {answer} ) ] )\t{answer}\r\n"
        );
        write(folder.path(), &format!("basic_{name}.tsv"), text);
    }
    let task = LraTask::named("listops").unwrap();
    assert_eq!(get(&task, Some(folder.path()), Split::Valid, 1, 99), (vec![11, 10, 9, 15], 8));
    let broken = LraTask::ListOps(ListOps { brackets: false, ..ListOps::default() });
    assert_eq!(get(&broken, Some(folder.path()), Split::Test, 0, 99), (vec![12, 8, 3], 7));
    write(folder.path(), "basic_val.tsv", "Source\tTarget\n[MAX 3 ]\t3\n[MEAN 2 ]\t2\n");
    let message = refused(&task, Some(folder.path()));
    assert!(message.contains("basic_val.tsv, line 3: unknown ListOps word `[MEAN`"), "{message}");
    for (line, why) in [
        ("[MAX 3 4 ]\t3", "the answer is 3, but the value of the expression is 4"),
        ("[MAX 3 4 ]\t12", "the answer is 12, but the value of the expression is 4"),
        ("[MAX 3 4\t4", "the expression is not whole: 1 operation is never closed"),
        ("[MAX 3 ] 4\t4", "the expression is not whole: the expression ends at token 2 of 4"),
    ] {
        write(folder.path(), "basic_val.tsv", format!("[MAX 3 ]\t3\n{line}\n"));
        let message = refused(&task, Some(folder.path()));
        assert!(message.contains(&format!("basic_val.tsv, line 2: {why}")), "{message}");
    }
}

#[test]
fn texts_are_read_from_lines_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (lines, reviews) = (folder.path().join("lines"), folder.path().join("imdb"));
    for name in ["train", "valid", "test"] {
        let text =
            format!("{{\"text\": \"é {name}\", \"label\": 1, \"meta\": 3}}\n\n{{\"text\": \"b\", \"label\": 0}}\n");
        write(&lines, &format!("{name}.jsonl.zst"), zstd::encode_all(text.as_bytes(), 1).unwrap());
    }
    let task = LraTask::named("lra_text").unwrap();
    assert_eq!(get(&task, Some(&lines), Split::Valid, 0, 4), (vec![196, 170, 33, 119], 1));
    assert_eq!(get(&task, Some(&lines), Split::Test, 1, 4), (vec![99], 0));
    for part in ["train", "test"] {
        write(&reviews, &format!("{part}/pos/7_9.txt"), format!("good {part}"));
        write(&reviews, &format!("{part}/neg/3_1.txt"), "bad");
        write(&reviews, &format!("{part}/unsup/1_0.txt"), "?");
    }
    let source = task.open(Some(&reviews), &ON).unwrap();
    assert_eq!(Split::ALL.map(|split| source.count(split)), [Some(2); 3]);
    assert_eq!(source.example(place(Split::Valid, 1), 99).unwrap(), source.example(place(Split::Test, 1), 99).unwrap());
    assert_eq!(get(&task, Some(&reviews), Split::Train, 0, 99), (vec![99, 98, 101], 0));
    assert!(
        source.remark().is_some_and(|remark| remark.contains("the test split serves for validation, as published"))
    );
    assert_eq!(task.open(Some(&lines), &ON).unwrap().remark(), None);
    write(&reviews, "train/pos/.hidden", "no review");
    assert_eq!(task.open(Some(&reviews), &ON).unwrap().count(Split::Train), Some(2));
    write(&reviews, "train/pos/8_9.txt.gz", "one more");
    assert!(refused(&task, Some(&reviews)).contains("8_9.txt.gz: it is not a .txt file"));
    assert_ne!(source.facts().content, task.open(Some(&lines), &ON).unwrap().facts().content);
    write(&lines, "valid.jsonl.zst", zstd::encode_all(&b"{\"text\": \"a\", \"label\": 2}\n"[..], 1).unwrap());
    let message = refused(&task, Some(&lines));
    assert!(
        message.contains(", line ")
            && message.contains("label 2 is out of range; the classes are 0 to 1")
            && message.contains("`classes`"),
        "{message}"
    );
    write(&lines, "valid.jsonl.zst", zstd::encode_all(&b"{\"text\": \"a\", \"label\": \"no\"}\n"[..], 1).unwrap());
    assert!(refused(&task, Some(&lines)).contains("valid.jsonl.zst, line 1: invalid type"));
    assert!(refused(&task, None).contains("lra_text needs `data.path`"));
    assert!(refused(&LraTask::LraText(LraText { classes: 1 }), Some(&lines)).contains("classes = 1"));
}

fn idx(magic: [u8; 4], sizes: &[u32], values: &[u8]) -> Vec<u8> {
    [&magic[..], &sizes.iter().flat_map(|size| size.to_be_bytes()).collect::<Vec<u8>>(), values].concat()
}

#[test]
fn images_are_read_from_idx_files() {
    let folder = tempfile::tempdir().unwrap();
    let images = |count: u8| idx([0, 0, 8, 3], &[count.into(), 1, 2], &(0..2 * count).collect::<Vec<u8>>());
    let labels = |count: u8| idx([0, 0, 8, 1], &[count.into()], &(0..count).map(|at| at % 10).collect::<Vec<u8>>());
    write(folder.path(), "train-images-idx3-ubyte.gz", gzip(&images(20)));
    write(folder.path(), "train-labels-idx1-ubyte", labels(20));
    write(folder.path(), "t10k-images-idx3-ubyte", images(3));
    write(folder.path(), "t10k-labels-idx1-ubyte.gz", gzip(&labels(3)));
    let task = LraTask::named("lra_image").unwrap();
    let source = task.open(Some(folder.path()), &ON).unwrap();
    assert_eq!(Split::ALL.map(|split| source.count(split)), [Some(18), Some(2), Some(3)]);
    assert_eq!(get(&task, Some(folder.path()), Split::Valid, 1, 9), (vec![38, 39], 9));
    assert_eq!(get(&task, Some(folder.path()), Split::Test, 2, 1), (vec![4], 2));
    let two = LraTask::Image(super::image::Image { classes: 2 });
    assert!(refused(&two, Some(folder.path())).contains("train-labels-idx1-ubyte, label 3: label 2 is out of range"));
    write(folder.path(), "t10k-images-idx3-ubyte", idx([0, 0, 8, 3], &[3, 2, 1], &[7; 6]));
    let message = refused(&task, Some(folder.path()));
    assert!(message.contains("t10k-images-idx3-ubyte: the images have 2 x 1 pixels, but those to train on have 1 x 2"));
    write(folder.path(), "t10k-images-idx3-ubyte", images(3));
    let lies = [
        (images(21), "21 images"),
        (idx([0, 0, 9, 3], &[20, 1, 2], &[0; 40]), "the file starts with"),
        (idx([0, 0, 8, 3], &[u32::MAX; 3], &[0; 40]), "the file has 40 values"),
        (vec![0; 5], "too few for a header"),
    ];
    for (bytes, expected) in lies {
        write(folder.path(), "train-images-idx3-ubyte.gz", gzip(&bytes));
        assert!(refused(&task, Some(folder.path())).contains(expected));
    }
    write(folder.path(), "train-images-idx3-ubyte.gz", &gzip(&images(20))[..30]);
    assert!(refused(&task, Some(folder.path())).contains("cannot read further"));
}

#[test]
fn images_are_read_from_cifars_files() {
    let folder = tempfile::tempdir().unwrap();
    let record = |label: u8, red: u8, green: u8, blue: u8| {
        let channel = |value: u8| vec![value; 1024];
        [vec![label], channel(red), channel(green), channel(blue)].concat()
    };
    for number in 1..=5u8 {
        let two = [record(number, 255, 0, 0), record(number, 10 * number, 10 * number, 10 * number)].concat();
        write(folder.path(), &format!("cifar-10-batches-bin/data_batch_{number}.bin"), two);
    }
    write(folder.path(), "cifar-10-batches-bin/test_batch.bin", record(3, 255, 255, 255));
    let task = LraTask::named("lra_image").unwrap();
    assert_eq!(get(&task, Some(folder.path()), Split::Train, 0, 2), (vec![76, 76], 1), "0.2989 * 255.5 = 76.4");
    assert_eq!(get(&task, Some(folder.path()), Split::Valid, 0, 1), (vec![50], 5));
    assert_eq!(get(&task, Some(folder.path()), Split::Test, 0, 5000), (vec![255; 1024], 3));
    write(folder.path(), "cifar-10-batches-bin/data_batch_4.bin", vec![0; 3072]);
    assert!(refused(&task, Some(folder.path())).contains("data_batch_4.bin: the file has 3072 bytes"));
    // greys stay what they are
    assert!((0..=255u8).all(|value| image::grey([value; 3]).abs_diff(value) <= 1));
}

#[test]
fn pairs_are_read_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["train", "eval", "test"] {
        let text = format!("0.0\tA\tB\tone \"{part}\tanother\n1.0\tC\tD\té\tlast\ttab\n");
        write(folder.path(), &format!("new_aan_pairs.{part}.tsv"), text);
    }
    let task = LraTask::named("lra_retrieval").unwrap();
    let path = Some(folder.path());
    assert_eq!(get(&task, path, Split::Test, 0, 7), (vec![112, 111, 102, 257, 98, 111, 112], 0));
    let (tokens, label) = get(&task, path, Split::Train, 1, 99);
    assert_eq!((tokens.len(), tokens[..3].to_vec(), label), (11, vec![196, 170, 257], 1));
    write(folder.path(), "new_aan_pairs.eval.tsv", "0.5\tA\tB\tx\ty\n");
    assert!(refused(&task, path).contains("new_aan_pairs.eval.tsv, line 1: the label is `0.5`"));
    write(folder.path(), "new_aan_pairs.eval.tsv", "1.0\tA\tB\tx\n");
    assert!(refused(&task, path).contains("the line has 4 fields"));
}

/// Subjects that the words of a made-up text are of.
fn subjects(tokens: &[u32]) -> BTreeSet<usize> {
    let number = |word: &[u32]| {
        let place =
            |letters: &[u8], token: u32| letters.iter().position(|letter| u32::from(*letter) + 1 == token).unwrap();
        let syllable = |pair: &[u32]| place(b"bdfghklmnprstvz", pair[0]) + 15 * place(b"aeiou", pair[1]);
        word.chunks(2).rev().fold(0, |number, pair| 75 * number + syllable(pair))
    };
    let words = tokens.split(|token| *token == u32::from(b' ') + 1).filter(|word| word.len() == 6).map(number);
    words.filter_map(|number| number.checked_sub(retrieval::COMMON)).map(|own| own / retrieval::OWN).collect()
}

#[test]
fn made_up_pairs_have_a_subject_in_common_or_not() {
    let task = LraTask::named("lra_retrieval").unwrap();
    let source = task.open(None, &ON).unwrap();
    assert!(source.facts().content.contains("made up"));
    let (mut joined, mut seen) = (0, BTreeSet::new());
    for index in 0..200 {
        let example = source.example(place(Split::Train, index), 801).unwrap();
        assert_eq!((example.input.len(), example.input[400]), (801, 257));
        let [first, second] = [subjects(&example.input[..400]), subjects(&example.input[401..])];
        assert_eq!((first.len(), second.len()), (1, 1));
        assert_eq!(first == second, example.targets[0] == 1);
        joined += example.targets[0];
        seen.extend(first.union(&second).copied());
    }
    // 100 expected, standard deviation 7
    assert!((65..135).contains(&joined), "{joined}");
    assert_eq!(seen, (0..8).collect());
    for subjects in [0, 1, 1001] {
        let said = refused(&LraTask::Retrieval(Retrieval { subjects, ..Retrieval::default() }), None);
        assert!(said.contains("use 2 to 1000 subjects"), "{said}");
    }
}

fn png(pixels: &[u8], side: u32, colour: png::ColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, side, side);
    encoder.set_color(colour);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    bytes
}

#[test]
fn published_paths_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let level = folder.path().join("curv_contour_length_14");
    let mut list = String::new();
    for at in 0..21 {
        let name = format!("sample_{at}.png");
        let bytes = if at == 3 { Vec::new() } else { png(&[at as u8; 1024], 32, png::ColorType::Grayscale) };
        write(&level, &format!("imgs/0/{name}"), bytes);
        list += &format!("imgs/0 {name} {at} {} 1.8 14 4 2 0.5 1 1\n", at % 2);
    }
    write(&level, "metadata/10.npy", list.lines().skip(10).collect::<Vec<_>>().join("\n") + "\n");
    write(&level, "metadata/2.npy", list.lines().take(10).collect::<Vec<_>>().join("\n") + "\n");
    let task = LraTask::named("pathfinder").unwrap();
    let source = task.open(Some(folder.path()), &ON).unwrap();
    assert_eq!(Split::ALL.map(|split| source.count(split)), [Some(16), Some(2), Some(2)]);
    assert_eq!(get(&task, Some(&level), Split::Train, 3, 2), (vec![4, 4], 0), "the empty one is passed over");
    assert_eq!(get(&task, Some(folder.path()), Split::Test, 1, 5000), (vec![20; 1024], 0));
    // other pixels in as many bytes are other data
    let content = source.facts().content;
    let mut bytes = fs::read(level.join("imgs/0/sample_5.png")).unwrap();
    bytes.rotate_right(1);
    write(&level, "imgs/0/sample_5.png", bytes);
    assert_ne!(task.open(Some(&level), &ON).unwrap().facts().content, content);
    assert!(matches!(task.open(Some(&level), &AtomicBool::new(true)).err(), Some(Error::Stopped)));
    write(&level, "imgs/0/sample_0.png", png(&[7; 3 * 1024], 32, png::ColorType::Rgb));
    assert_eq!(get(&task, Some(&level), Split::Train, 0, 2), (vec![7, 7], 0));
    for (bytes, expected) in
        [(png(&[0; 16], 4, png::ColorType::Grayscale), "4 x 4 pixels"), (vec![1; 9], "sample_0.png: ")]
    {
        write(&level, "imgs/0/sample_0.png", bytes);
        let error = task.open(Some(&level), &ON).unwrap().example(place(Split::Train, 0), 9).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    write(&level, "metadata/2.npy", "../.. passwd 0 1\n");
    assert!(refused(&task, Some(&level)).contains("is outside the folder"));
    write(&level, "metadata/2.npy", "imgs/0 sample_1.png 0 yes\n");
    assert!(refused(&task, Some(&level)).contains("2.npy, line 1: the label is `yes`"));
}

#[test]
fn generated_paths_are_balanced() {
    let keys = Pathfinder { level: pathfinder::PathfinderLevel::Easy, ..Pathfinder::default() };
    let source = LraTask::Pathfinder(keys).open(None, &ON).unwrap();
    let labels: u32 = (0..100).map(|at| source.example(place(Split::Valid, at), 1024).unwrap().targets[0]).sum();
    assert!((25..75).contains(&labels), "{labels}");
    assert!(refused(&LraTask::Pathfinder(Pathfinder { size: 33, ..keys }), None).contains("size = 33"));
}

#[test]
fn keys_are_read_back_and_matter() {
    for name in LraTask::NAMES {
        let task = LraTask::named(name).unwrap();
        assert_eq!((task.name(), task.facts().name.as_str()), (name, name));
        let Value::Object(keys) = task.keys() else { panic!("{name} has keys") };
        assert_eq!(task.with_keys(keys.clone()).unwrap(), task);
        for (key, value) in &keys {
            let other = match value {
                Value::Bool(value) => Value::Bool(!value),
                Value::Number(_) => Value::from(64),
                _ => Value::from("easy"),
            };
            let mut changed = keys.clone();
            changed.insert(key.clone(), other);
            let changed = task.with_keys(changed).unwrap();
            assert_ne!(changed.facts().content, task.facts().content, "{name}.{key}");
        }
        let unknown = [("word".to_owned(), Value::from(1))].into_iter().collect();
        assert!(task.with_keys(unknown).unwrap_err().to_string().contains("word"));
    }
}

/// What editors and systems leave in files and beside them is no data.
#[test]
fn marks_line_ends_and_hidden_files_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let content = |task: &LraTask, folder: &Path| task.open(Some(folder), &ON).unwrap().facts().content;
    let [listops, texts, pairs] = ["listops", "lra_text", "lra_retrieval"].map(|name| LraTask::named(name).unwrap());
    let variants = |text: &str| {
        let windows = text.replace('\n', "\r\n");
        [text.to_owned(), windows, format!("\u{feff}{text}"), format!("{text}\n"), format!("\u{feff}{text}\r\n")]
    };
    let expressions = "( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 4 ) 9 ) ] )\t3\n";
    let tables = "0.0\tA\tB\tsome text\tanother\n1.0\tC\tD\tmore\tlast\n";
    let lines = "{\"text\": \"a NaN\", \"label\": 1}\n{\"text\": \"c\", \"label\": 0}\n";
    let odd = lines.replace("\"label\": 1", "\"a\": NaN, \"b\": [-Infinity, {\"c\": Infinity}], \"label\": 1");
    let cases = [
        (&listops, ["basic_train.tsv", "basic_val.tsv", "basic_test.tsv"], variants(expressions).to_vec()),
        (&listops, ["basic_train.tsv", "basic_val.tsv", "basic_test.tsv"], {
            let with_header = format!("Source\tTarget\n{expressions}");
            [vec![expressions.to_owned()], variants(&with_header).to_vec()].concat()
        }),
        (&texts, ["train.jsonl", "valid.jsonl", "test.jsonl"], {
            [variants(lines).to_vec(), variants(&odd).to_vec()].concat()
        }),
        (
            &pairs,
            ["new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv"],
            variants(tables).to_vec(),
        ),
    ];
    for (task, names, texts) in cases {
        let contents: BTreeSet<String> = texts
            .iter()
            .map(|text| {
                names.iter().for_each(|name| write(root.path(), name, text));
                let last = get(task, Some(root.path()), Split::Test, 1, 100).0;
                // tokens of expressions are no bytes
                let bytes = task.name() != listops.name();
                assert!(!bytes || !last.contains(&(u32::from(b'\r') + 1)), "{text:?}");
                assert_eq!(task.open(Some(root.path()), &ON).unwrap().count(Split::Train), Some(2), "{text:?}");
                content(task, root.path())
            })
            .collect();
        assert_eq!(contents.len(), 1, "{}", task.name());
    }
    write(root.path(), "valid.jsonl", "{\"text\": \"a\", \"label\": NaN}\n");
    assert!(refused(&texts, Some(root.path())).contains("valid.jsonl, line 1"));
    let reviews = root.path().join("reviews");
    for (split, kind) in [("train", "pos"), ("train", "neg"), ("test", "pos"), ("test", "neg")] {
        write(&reviews, &format!("{split}/{kind}/0_7.txt"), format!("{kind} of\n{split}"));
    }
    let plain = content(&texts, &reviews);
    write(&reviews, "train/pos/._0_7.txt", b"\0\x05\x16\x07\0\x02\0\0Mac OS X        ");
    write(&reviews, "test/neg/.hidden.txt", "hidden");
    write(&reviews, "train/neg/0_7.txt", "\u{feff}neg of\r\ntrain");
    assert_eq!(content(&texts, &reviews), plain);
}
