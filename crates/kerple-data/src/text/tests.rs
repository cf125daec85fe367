use super::*;
use ::parquet::column::writer::ColumnWriter;
use ::parquet::data_type::ByteArray;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use std::fs;
use std::io::Write;
use std::sync::Arc;
use tempfile::TempDir;

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn read(path: &Path) -> Result<Vec<DocumentContent>> {
    let mut found = Vec::new();
    for file in Sources::paths(&[path]).files()?.0 {
        let mut documents = file.documents("text")?;
        for document in documents.by_ref() {
            match document?.content {
                DocumentContent::Bad(error) => return Err(error),
                content => found.push(content),
            }
        }
        assert_eq!(documents.bytes_read(), file.size, "{}", file.path.display());
    }
    Ok(found)
}

fn texts(path: &Path) -> Vec<String> {
    let text = |content| match content {
        DocumentContent::Text(text) => text,
        other => panic!("{other:?}"),
    };
    read(path).unwrap().into_iter().map(text).collect()
}

/// What is said of a file, without the folder it is in.
fn failure(name: &str, bytes: &[u8]) -> String {
    let folder = folder(&[(name, bytes)]);
    let error = read(&folder.path().join(name)).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn lines(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|line| format!("{{\"meta\":{{}},\"text\":\"line {line} {}\"}}\n", line * 77_777).into_bytes())
        .collect()
}

/// A Parquet file with a column `id` and rows of an optional column `text`.
fn parquet(rows: &[Option<&str>]) -> Vec<u8> {
    let schema = parse_message_type("message m { required int32 id; optional binary text (STRING); }").unwrap();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(WriterProperties::default())).unwrap();
    for part in rows.chunks(2) {
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            match column.untyped() {
                ColumnWriter::Int32ColumnWriter(ids) => _ = ids.write_batch(&vec![7; part.len()], None, None).unwrap(),
                ColumnWriter::ByteArrayColumnWriter(texts) => {
                    let values: Vec<ByteArray> = part.iter().flatten().map(|text| ByteArray::from(*text)).collect();
                    let levels: Vec<i16> = part.iter().map(|text| i16::from(text.is_some())).collect();
                    texts.write_batch(&values, Some(&levels), None).unwrap();
                }
                _ => unreachable!(),
            }
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn folders_are_walked_in_order() {
    let folder = folder(&[
        ("b/z.md", b"z"),
        ("b/a.rs", b"a"),
        ("a.txt", b"\xef\xbb\xbffirst"),
        (".git/x", b"hidden"),
        (".hidden", b"hidden"),
        ("b/CVS/Root", b"hidden"),
        ("c.bin", b"a\0b"),
        ("d.text", b"\xff"),
    ]);
    let found = format!("{:?}", read(folder.path()).unwrap());
    assert_eq!(
        found,
        r#"[Text("first"), Text("a"), Text("z"), NotText("byte 1 is NUL, so the file is not text"), NotText("byte 0 is not valid UTF-8")]"#
    );
}

#[test]
fn compressed_files_read_like_plain_ones() {
    let plain = lines(5000);
    let twice = [gzip(&plain), gzip(&plain)].concat();
    let zstd = zstd::encode_all(&plain[..], 3).unwrap();
    let folder = folder(&[("a.jsonl", &plain), ("b.jsonl.gz", &twice), ("c.jsonl.zst", &zstd), ("d.text.zst", &zstd)]);
    let expected = texts(&folder.path().join("a.jsonl"));
    assert_eq!(expected.len(), 5000);
    assert_eq!(texts(&folder.path().join("b.jsonl.gz")), [&expected[..], &expected].concat());
    assert_eq!(texts(&folder.path().join("c.jsonl.zst")), expected);
    assert_eq!(texts(&folder.path().join("d.text.zst")).concat().into_bytes(), plain);
}

#[test]
fn parquet_rows_are_documents() {
    let folder = folder(&[("a.parquet", &parquet(&[Some("one"), Some("zwei é"), Some("")]))]);
    assert_eq!(texts(folder.path()), ["one", "zwei é", ""]);
    insta::assert_snapshot!(failure("a.parquet", &parquet(&[Some("one"), None])), @"a.parquet, row 2: column `text` is null");
    let file = SourceFile::new(&folder.path().join("a.parquet"), false, 0).unwrap();
    let message = |key| file.documents(key).err().unwrap().to_string().rsplit('/').next().unwrap().to_owned();
    insta::assert_snapshot!(message("body"), @"a.parquet: no column is called `body`; the columns are: id, text");
    insta::assert_snapshot!(message("id"), @"a.parquet: column `id` does not contain text");
}

/// A text within a structure, which may be missing as a whole or by itself.
#[test]
fn fields_of_structures_are_columns() {
    let schema = "message m { optional group a { optional binary b (STRING); required int32 n; } \
                  optional group list { repeated binary text (STRING); } required binary c (STRING); }";
    let mut writer = SerializedFileWriter::new(
        Vec::new(),
        Arc::new(parse_message_type(schema).unwrap()),
        Arc::new(WriterProperties::default()),
    )
    .unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut number = 0;
    while let Some(mut column) = group.next_column().unwrap() {
        match column.untyped() {
            ColumnWriter::Int32ColumnWriter(ids) => _ = ids.write_batch(&[7, 7], Some(&[1, 1, 0]), None).unwrap(),
            ColumnWriter::ByteArrayColumnWriter(texts) => {
                let values = |texts: &[&str]| texts.iter().map(|text| ByteArray::from(*text)).collect::<Vec<_>>();
                _ = match number {
                    0 => texts.write_batch(&values(&["inner"]), Some(&[2, 1, 0]), None).unwrap(),
                    2 => texts.write_batch(&[], Some(&[0, 0, 0]), Some(&[0, 0, 0])).unwrap(),
                    _ => texts.write_batch(&values(&["x", "y", "z"]), None, None).unwrap(),
                };
            }
            _ => unreachable!(),
        }
        number += 1;
        column.close().unwrap();
    }
    group.close().unwrap();
    let folder = folder(&[("a.parquet", &writer.into_inner().unwrap())]);
    let file = SourceFile::new(&folder.path().join("a.parquet"), false, 0).unwrap();
    let found: Vec<DocumentContent> = file.documents("a.b").unwrap().map(|row| row.unwrap().content).collect();
    assert!(
        matches!(&found[..], [DocumentContent::Text(inner), DocumentContent::Bad(_), DocumentContent::Bad(_)] if inner == "inner")
    );
    let message = |key| file.documents(key).err().unwrap().to_string().rsplit('/').next().unwrap().to_owned();
    insta::assert_snapshot!(message("a"), @"a.parquet: column `a` does not contain text");
    insta::assert_snapshot!(message("a.n"), @"a.parquet: column `a.n` does not contain text");
    insta::assert_snapshot!(message("list.text"), @"a.parquet: column `list.text` does not contain text");
    insta::assert_snapshot!(message("a.x"), @"a.parquet: no column is called `a.x`; the columns are: a, list, c");
}

#[test]
fn of_two_columns_of_one_name_none_is_taken() {
    let schema = "message m { required binary text (STRING); required binary text (STRING); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(WriterProperties::default())).unwrap();
    let file = writer.into_inner().unwrap();
    insta::assert_snapshot!(failure("a.parquet", &file), @"a.parquet: more than one column is called `text`");
}

/// A null row is one document; those behind it are read on.
#[test]
fn rows_behind_a_null_are_read() {
    let folder = folder(&[("a.parquet", &parquet(&[Some("one"), None, Some("three")]))]);
    let file = SourceFile::new(&folder.path().join("a.parquet"), false, 0).unwrap();
    let found: Vec<DocumentContent> =
        file.documents("text").unwrap().map(|document| document.unwrap().content).collect();
    assert!(
        matches!(&found[..], [DocumentContent::Text(one), DocumentContent::Bad(_), DocumentContent::Text(three)] if one == "one" && three == "three")
    );
}

#[test]
fn damaged_files_are_described() {
    let plain = lines(5000);
    let (zstd, gz) = (zstd::encode_all(&plain[..], 3).unwrap(), gzip(&plain));
    insta::assert_snapshot!(failure("a.jsonl.zst", &zstd[..zstd.len() / 2]), @"a.jsonl.zst, line 1: cannot read further: incomplete frame");
    insta::assert_snapshot!(failure("a.jsonl.zst", &plain), @"a.jsonl.zst, line 1: cannot read further: Unknown frame descriptor");
    insta::assert_snapshot!(failure("a.jsonl.gz", &gz[..gz.len() / 2]), @"a.jsonl.gz, line 2534: cannot read further: incomplete deflate stream");
    insta::assert_snapshot!(failure("a.txt.gz", b"no"), @"a.txt.gz: cannot read further: unexpected end of file");
    insta::assert_snapshot!(failure("a.jsonl", &plain[..plain.len() - 5]), @"a.jsonl, line 5000: column 36: EOF while parsing a string");
    insta::assert_snapshot!(failure("a.txt", b"ab\xffc"), @"a.txt: byte 2 is not valid UTF-8");
    insta::assert_snapshot!(failure("a.rs", b"a\0"), @"a.rs: byte 1 is NUL, so the file is not text");
    let rows = parquet(&[Some("one"), Some("two")]);
    insta::assert_snapshot!(failure("a.parquet", &rows[..rows.len() / 2]), @"a.parquet: Parquet error: Invalid Parquet file. Corrupt footer");
    insta::assert_snapshot!(failure("a.parquet", b""), @"a.parquet: EOF: Parquet file too small. Size is 0 but need 8");
}

#[test]
fn missing_inputs_are_described() {
    let folder = folder(&[(".hidden", b"x")]);
    let error = read(&folder.path().join("none.txt")).unwrap_err();
    assert!(error.to_string().contains("none.txt: cannot read: No such file"), "{error}");
    assert_eq!(error.hint(), "check the path");
    let error = read(folder.path()).unwrap_err();
    assert!(error.to_string().starts_with("no file to read in: "), "{error}");
}
