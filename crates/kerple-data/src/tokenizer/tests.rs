use super::pieces::{PIECE, gap};
use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;

/// A small byte-level vocabulary, learned from this very file.
static LEARNED: LazyLock<Tokenizer> = LazyLock::new(|| learn(400).unwrap());

fn learn(vocab_size: usize) -> Result<Tokenizer> {
    let mut counts = WordCounts::default();
    counts.add(&include_str!("tests.rs").lines().map(str::to_owned).collect::<Vec<_>>());
    counts.add(&["naïve 文字 🙂 ".repeat(50)]);
    counts.train(vocab_size)
}

fn parse(definition: &str, end: Option<&str>) -> Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, definition).unwrap();
    Tokenizer::from_file(&path, end)
}

/// SentencePiece-like: spaces as U+2581, unknown characters as bytes.
fn sentence_piece() -> Tokenizer {
    let bytes: Vec<String> = (0..256).map(|byte| format!("\"<0x{byte:02X}>\":{}", byte + 10)).collect();
    let definition = format!(
        r#"{{"version":"1.0","added_tokens":[{{"id":1,"content":"</s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}}],
        "normalizer":null,"pre_tokenizer":{{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}},"post_processor":null,
        "decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}},{{"type":"Strip","content":" ","start":1,"stop":0}}]}},
        "model":{{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"ignore_merges":false,
        "vocab":{{"<unk>":0,"</s>":1,"▁":2,"a":3,"b":4,"▁a":5,"ab":6,{}}},"merges":["▁ a","a b"]}}}}"#,
        bytes.join(",")
    );
    parse(&definition, None).unwrap()
}

const WORD_PIECE: &str = r###"{"version":"1.0","added_tokens":[{"id":1,"content":"[SEP]","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],
    "truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
    "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":{"type":"WordPiece","prefix":"##","cleanup":false},
    "model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"[SEP]":1,"a":2,"##b":3,"cat":4}}}"###;

#[test]
fn what_a_definition_adds_or_cuts_is_said_to_be_left_out() {
    let processor = r#""post_processor":{"type":"BertProcessing","sep":["[SEP]",1],"cls":["[UNK]",0]}"#;
    let definition = WORD_PIECE.replace(r#""post_processor":null"#, processor);
    let warnings = parse(&definition, None).unwrap().warnings();
    assert!(warnings.contains(&"the tokenizer's truncation to 2 tokens is ignored: documents stay whole".to_owned()));
    // documents end with `[SEP]` anyway
    assert!(warnings.iter().any(|warning| warning.contains("post_processor adds `[UNK]` to a text")), "{warnings:?}");
}

/// Where the text of each token begins, counted in characters.
fn offsets(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<usize> {
    let (mut decoder, mut length) = (tokenizer.decoder(), 0);
    let offset = |token: &u32| {
        let (text, before) = decoder.push_at(*token);
        let offset = length + before;
        length += text.chars().count();
        offset
    };
    tokens.iter().map(offset).collect()
}

#[test]
fn a_token_begins_behind_the_broken_bytes_before_it() {
    let byte = Tokenizer::byte();
    assert_eq!(offsets(&byte, &[0x61, 0xc3, 0xa9, 0x62]), [0, 1, 1, 2], "a whole character");
    assert_eq!(offsets(&byte, &[0x61, 0xc3, 0x62, 0x63]), [0, 1, 2, 3], "half a character, and a letter");
    assert_eq!(offsets(&byte, &[0xc3, 0xe2, 0x82, 0xac, 0x62]), [0, 1, 1, 1, 2]);
    assert_eq!(offsets(&byte, &[0xe2, 0x82, 0x61, 0xff, 0x62]), [0, 0, 1, 2, 3]);
}

fn streamed(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
    let mut decoder = tokenizer.decoder();
    let mut parts: Vec<String> = tokens.iter().map(|token| decoder.push(*token)).collect();
    parts.push(decoder.finish());
    parts
}

proptest! {
    #[test]
    fn text_survives(text in "\\PC{0,40}") {
        for tokenizer in [&Tokenizer::byte(), &*LEARNED] {
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens), text.as_str());
            prop_assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.vocab_size()));
            let bytes: usize = tokens.iter().map(|token| tokenizer.token_bytes(*token)).sum();
            prop_assert_eq!(bytes, text.len());
        }
    }

    /// Any tokens at all, as a model may sample them.
    #[test]
    fn streaming_equals_decoding_at_once(tokens in prop::collection::vec(0u32..420, 0..60)) {
        for tokenizer in [&Tokenizer::byte(), &*LEARNED] {
            prop_assert_eq!(streamed(tokenizer, &tokens).concat(), tokenizer.decode(&tokens));
        }
    }

    /// Texts without U+FFFD itself, so that it can only come from half a character.
    #[test]
    fn streaming_never_shows_half_a_character(text in "\\PC{0,20}") {
        let text = text.replace(char::REPLACEMENT_CHARACTER, "?");
        for tokenizer in [&Tokenizer::byte(), &*LEARNED, &sentence_piece()] {
            let tokens = tokenizer.encode(&text).unwrap();
            let parts = streamed(tokenizer, &tokens);
            prop_assert!(parts.iter().all(|part| !part.contains(char::REPLACEMENT_CHARACTER)));
            prop_assert_eq!(parts.concat(), tokenizer.decode(&tokens));
        }
    }

    /// The table of bytes says what the library's own decoder does.
    #[test]
    fn byte_level_decoding_is_the_librarys(tokens in prop::collection::vec(0u32..400, 0..40)) {
        prop_assert_eq!(LEARNED.decode(&tokens), LEARNED.inner().decode(&tokens));
    }

    /// The claim that cutting rests on, for every way of splitting words that is known.
    #[test]
    fn gaps_are_bounds_of_tokens(text in "[a-zA-Z0-9 .,/\n\r\t'é文。(\u{301}]{0,80}", from in 0usize..60) {
        if let Some(at) = gap(&text, from) {
            let (left, right) = text.split_at(at);
            prop_assert!(at >= from && !left.is_empty() && !right.is_empty());
            for tokenizer in std::iter::once(&*LEARNED).chain(SPLITTERS.iter()) {
                let parts = [tokenizer.encode(left).unwrap(), tokenizer.encode(right).unwrap()].concat();
                prop_assert_eq!(parts, tokenizer.encode(&text).unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Pieces, however the text comes, are the text.
    #[test]
    fn pieces_are_the_text(words in prop::collection::vec("[a-z]{1,9}", 1..50), chunk in 500usize..200_000) {
        let text = words.join(" ") + " ";
        let text = text.repeat(3 * PIECE / text.len() + 1);
        for cuts in [TextCuts::Anywhere, TextCuts::Gaps, TextCuts::Nowhere] {
            let mut pieces = TextPieces::new(cuts);
            let mut found = Vec::new();
            for start in (0..text.len()).step_by(chunk) {
                pieces.push(&text[start..text.len().min(start + chunk)], &mut |piece| found.push(piece)).unwrap();
            }
            prop_assert!(found.iter().all(|piece| piece.len() >= PIECE));
            prop_assert!((found.len() < 2) == (cuts == TextCuts::Nowhere));
            found.push(pieces.finish());
            prop_assert!(found.concat() == text);
        }
    }
}

/// Tokenizers that differ from [`LEARNED`] in how they split words and in a merge, `. `, that could reach across.
static SPLITTERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let split = |pattern: String| {
        let mut definition: serde_json::Value = serde_json::from_str(LEARNED.definition()).unwrap();
        definition["pre_tokenizer"] = serde_json::json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        ] });
        definition["normalizer"] = serde_json::json!({ "type": "NFC" });
        parse(&definition.to_string(), None).unwrap()
    };
    shape::known_splits().map(split).collect()
});

/// Tokens of a text encoded in pieces as preparing does.
fn piecewise(tokenizer: &Tokenizer, text: &str) -> (usize, Vec<u32>) {
    let mut pieces = TextPieces::new(tokenizer.cuts());
    let mut found = Vec::new();
    pieces.push(text, &mut |piece| found.push(piece)).unwrap();
    found.push(pieces.finish());
    (found.len(), found.iter().flat_map(|piece| tokenizer.encode(piece).unwrap()).collect())
}

#[test]
fn long_texts_come_in_pieces() {
    let text = "some words here\n".repeat(3 * PIECE / 16);
    for tokenizer in std::iter::once(&*LEARNED).chain(SPLITTERS.iter()) {
        let (pieces, tokens) = piecewise(tokenizer, &text);
        assert!(pieces == 3 && tokens == tokenizer.encode(&text).unwrap(), "{pieces} pieces");
    }
    assert_eq!(sentence_piece().cuts(), TextCuts::Nowhere);
    assert_eq!(Tokenizer::byte().cuts(), TextCuts::Anywhere);
}

/// A tokenizer with merges across spaces: `a b` is one token, however long the text.
#[test]
fn what_merges_across_spaces_is_not_cut() {
    let mut definition: serde_json::Value = serde_json::from_str(LEARNED.definition()).unwrap();
    let space = hugging_face::letter_of(b' ');
    definition["pre_tokenizer"]["use_regex"] = false.into();
    let model = &mut definition["model"];
    (model["vocab"][format!("a{space}")], model["vocab"][format!("a{space}b")]) = (400.into(), 401.into());
    model["merges"] = serde_json::json!([["a", space.to_string()], [format!("a{space}"), "b"]]);
    let crossing = parse(&definition.to_string(), None).unwrap();
    assert_eq!(crossing.encode("a b").unwrap(), [401]);
    let text = "a b".repeat(PIECE);
    let (pieces, tokens) = piecewise(&crossing, &text);
    assert!(pieces == 1 && tokens == crossing.encode(&text).unwrap());
    let mut endless = TextPieces::new(crossing.cuts());
    let error = endless.push(&"a b".repeat(pieces::WHOLE / 3 + 1), &mut |_| ()).unwrap_err();
    insta::assert_snapshot!(error, @"this tokenizer cannot encode a text of more than 8 MB in chunks");
}

/// Whatever could look beyond a gap keeps texts whole.
#[test]
fn only_what_is_known_is_cut() {
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut definition: serde_json::Value = serde_json::from_str(SPLITTERS[0].definition()).unwrap();
        change(&mut definition);
        parse(&definition.to_string(), None).unwrap().cuts()
    };
    let added = |content: &str, rstrip: bool, single_word: bool| {
        serde_json::json!([{ "id": 400, "content": content, "single_word": single_word, "lstrip": false, "rstrip": rstrip,
            "normalized": false, "special": false }])
    };
    assert_eq!(with(&|_| ()), TextCuts::Gaps);
    assert_eq!(with(&|all| all["added_tokens"] = serde_json::json!([])), TextCuts::Gaps);
    assert_eq!(with(&|all| all["added_tokens"][0]["rstrip"] = true.into()), TextCuts::Gaps, "special tokens are text");
    assert_eq!(with(&|all| all["normalizer"] = serde_json::json!({ "type": "Lowercase" })), TextCuts::Nowhere);
    assert_eq!(
        with(&|all| all["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\n".into()),
        TextCuts::Nowhere
    );
    assert_eq!(with(&|all| all["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into()), TextCuts::Nowhere);
    assert_eq!(
        with(&|all| all["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into()),
        TextCuts::Nowhere
    );
    for (content, rstrip, single, cuts) in [
        ("   ", false, false, TextCuts::Gaps),
        ("a b", false, false, TextCuts::Nowhere),
        ("a ", false, false, TextCuts::Nowhere),
        ("\nx", false, false, TextCuts::Nowhere),
        ("zz", true, false, TextCuts::Nowhere),
        ("zz", false, true, TextCuts::Nowhere),
    ] {
        let found = with(&|all| {
            let end = all["added_tokens"][0].clone();
            all["added_tokens"] = added(content, rstrip, single);
            all["added_tokens"].as_array_mut().unwrap().insert(0, end);
        });
        assert_eq!(found, cuts, "{content:?} {rstrip} {single}");
    }
    // a token that takes the line end before it, and one whose name has a space only once it is normalised
    let token = |content: &str, lstrip: bool, normalized: bool| {
        with(&|all| {
            all["normalizer"] = serde_json::json!({ "type": "NFKC" });
            all["added_tokens"] = added(content, false, false);
            all["added_tokens"][0]["lstrip"] = lstrip.into();
            all["added_tokens"][0]["normalized"] = normalized.into();
            let end = serde_json::json!({ "id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true });
            all["added_tokens"].as_array_mut().unwrap().insert(0, end);
        })
    };
    assert_eq!(token("zz", true, false), TextCuts::Nowhere);
    assert_eq!(token("a\u{a0}b", false, true), TextCuts::Nowhere);
    assert_eq!(token("zz", false, true), TextCuts::Gaps);
    assert_eq!(token("\u{ff5c}", false, false), TextCuts::Gaps);
}

/// Chance in a definition is switched off, and said.
#[test]
fn dropout_is_not_applied() {
    let mut definition: serde_json::Value = serde_json::from_str(LEARNED.definition()).unwrap();
    definition["model"]["dropout"] = 0.9.into();
    let dropping = parse(&definition.to_string(), None).unwrap();
    let text = "some words to be encoded ".repeat(20);
    assert_eq!(dropping.encode(&text).unwrap(), LEARNED.encode(&text).unwrap());
    assert_eq!(
        dropping.warnings(),
        ["the tokenizer's dropout of 0.9 is ignored, so that equal texts give equal tokens"]
    );
    assert!(LEARNED.warnings().is_empty());
}

#[test]
fn huge_ids_are_refused() {
    let definition = WORD_PIECE.replace("\"cat\":4", "\"cat\":4000000000");
    let error = parse(&definition, None).unwrap_err().to_string();
    assert!(
        error.ends_with("tokenizer.json: token `cat` has id 4000000000; the largest allowed id is 4194303"),
        "{error}"
    );
    assert_eq!(parse(WORD_PIECE, None).unwrap().unknown(), Some(0));
}

#[test]
fn learning_is_deterministic() {
    let again = learn(400).unwrap();
    assert_eq!(again.definition(), LEARNED.definition());
    assert_eq!((again.vocab_size(), again.end_of_document()), (400, 0));
    assert!(LEARNED.encode("tokenizer").unwrap().len() < 6, "common words are short");
}

#[test]
fn special_tokens_in_text_are_text() {
    let tokens = LEARNED.encode("a<|endoftext|>b").unwrap();
    assert!(!tokens.contains(&LEARNED.end_of_document()));
    assert_eq!(LEARNED.decode(&tokens), "a<|endoftext|>b");
    assert_eq!(LEARNED.decode(&[LEARNED.end_of_document()]), "");
    assert_eq!(LEARNED.token_bytes(LEARNED.end_of_document()), 0);
    assert_eq!(LEARNED.token_bytes(1_000_000), 0);
}

#[test]
fn the_byte_tokenizer_is_bytes() {
    let byte = Tokenizer::byte();
    assert_eq!(byte.encode("aé").unwrap(), [97, 195, 169]);
    assert_eq!(byte.decode(&[97, 0, 195, 300, 98]), "a\u{fffd}b");
    assert_eq!((byte.token_bytes(0), byte.token_bytes(97), byte.token_bytes(256)), (0, 1, 0));
    insta::assert_snapshot!(byte.encode("a\0").unwrap_err(), @"the text contains NUL, which the byte tokenizer uses as the end of a document");
}

#[test]
fn other_tokenizers_know_the_length_of_their_tokens() {
    let tokenizer = sentence_piece();
    assert_eq!(tokenizer.encode("ab a").unwrap(), [5, 4, 5]);
    assert_eq!(tokenizer.decode(&[5, 4, 5]), "ab a");
    let lengths = |tokens: &[u32]| tokens.iter().map(|token| tokenizer.token_bytes(*token)).collect::<Vec<_>>();
    assert_eq!(lengths(&[1, 2, 3, 5, 6, 10 + 0xe6]), [0, 1, 1, 2, 2, 1]);
    let pieces = parse(WORD_PIECE, None).unwrap();
    assert_eq!(pieces.encode("ab cat a").unwrap(), [2, 3, 4, 2], "the definition's truncation is not applied");
    assert_eq!([1, 2, 3, 4].map(|token| pieces.token_bytes(token)), [0, 2, 1, 4]);
    assert_eq!(streamed(&pieces, &[2, 3, 4]), ["a", "b", " cat", ""]);
}

/// What tokens spell one by one is what they spell together, bytes that are not UTF-8 included.
#[test]
fn tokens_spell_bytes_and_bytes_have_tokens() {
    let pieces = sentence_piece();
    let spelled: Vec<Vec<u8>> = [1, 3, 5, 6, 10 + 0xe6, 999].map(|token| pieces.spelling(token).into_owned()).into();
    let expected: [&[u8]; 6] = [b"", b"a", b" a", b"ab", b"\xe6", b""];
    assert_eq!(spelled, expected);
    assert_eq!(pieces.decode_bytes(&[5, 10 + 0xff, 3, 4, 5]), b"a\xffab a");
    assert_eq!(pieces.decode_bytes(&[10 + 0xff, 5]), b"\xff a");
    assert_eq!(pieces.encode_bytes(b"a\xff\xfe").unwrap(), [5, 10 + 0xff, 10 + 0xfe]);
    let word_piece = parse(WORD_PIECE, None).unwrap();
    assert!(word_piece.encode_bytes(b"a\xff").unwrap_err().to_string().contains("0xff"));
    for tokenizer in [&Tokenizer::byte(), &*LEARNED] {
        let bytes = [b"a\xff ".as_slice(), "文".as_bytes(), &"文".as_bytes()[..2], b"b"].concat();
        let tokens = tokenizer.encode_bytes(&bytes).unwrap();
        assert_eq!(tokenizer.decode_bytes(&tokens), bytes);
        assert!(tokenizer.decode(&tokens).contains(char::REPLACEMENT_CHARACTER));
    }
}

#[test]
fn the_end_of_a_document_is_found_or_named() {
    assert_eq!(parse(WORD_PIECE, None).unwrap().end_of_document(), 1);
    let named = parse(WORD_PIECE, Some("cat")).unwrap();
    assert_eq!(named.end_of_document(), 4);
    assert_ne!(named.fingerprint(), parse(WORD_PIECE, None).unwrap().fingerprint());
    let message = |definition: &str, end| {
        let error = parse(definition, end).unwrap_err().to_string();
        error[error.find("tokenizer.json").unwrap()..].to_owned()
    };
    insta::assert_snapshot!(message(WORD_PIECE, Some("dog")), @"tokenizer.json: unknown token `dog`");
    let without = WORD_PIECE.replace("[SEP]", "[END]");
    insta::assert_snapshot!(message(&without, None), @"tokenizer.json: none of the tokens <|endoftext|> <|end_of_text|> </s> <eos> [EOS] [SEP] is in the vocabulary");
    insta::assert_snapshot!(message("{}", None), @"tokenizer.json: not a tokenizer: Model missing. at line 1 column 2");
    insta::assert_snapshot!(message(&WORD_PIECE.replace("\"unk_token\":\"[UNK]\"", "\"unk_token\":\"[NO]\""), None), @"tokenizer.json: the tokenizer cannot encode every text: WordPiece error: Missing [UNK] token from the vocabulary");
}

#[test]
fn vocabularies_have_limits() {
    let error = learn(100_000).unwrap_err();
    assert!(error.to_string().starts_with("bpe:100000 is too large: the text has repeated pairs for "), "{error}");
}

#[test]
fn names_of_special_tokens_are_recognised_where_they_are_meant() {
    let byte = Tokenizer::byte();
    assert_eq!(byte.special_tokens(), [("<|endoftext|>".to_owned(), 0)]);
    assert_eq!(byte.encode_with_names("a<|endoftext|>b\0").unwrap(), [97, 0, 98, 0]);
    assert_eq!(byte.encode("<|endoftext|>").unwrap().len(), 13, "elsewhere names are text");
    for tokenizer in [&*LEARNED, &sentence_piece(), &parse(WORD_PIECE, None).unwrap()] {
        let special = tokenizer.special_tokens();
        let (name, id) = special.iter().find(|(_, id)| *id == tokenizer.end_of_document()).unwrap();
        assert_eq!(tokenizer.encode_with_names(name).unwrap(), [*id]);
        let both = tokenizer.encode_with_names(&format!("ab{name}{name}ab")).unwrap();
        let alone = tokenizer.encode("ab").unwrap();
        assert_eq!(both, [&alone[..], &[*id, *id], &alone].concat());
        assert_eq!(tokenizer.encode_with_names("ab").unwrap(), alone);
        assert_eq!(tokenizer.encode_with_names("").unwrap(), tokenizer.encode("").unwrap());
    }
}

/// A tokenizer with these added tokens, and files beside it.
fn with_added(added: &[(&str, bool)], beside: &[(&str, &str)]) -> Result<Tokenizer> {
    let mut definition: serde_json::Value = serde_json::from_str(WORD_PIECE).unwrap();
    definition["truncation"].take();
    let entry = |(id, (name, special)): (u32, &(&str, bool))| {
        serde_json::json!({ "id": id, "content": name, "special": special, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false })
    };
    definition["added_tokens"] = (10..).zip(added).map(entry).collect();
    let vocabulary = definition["model"]["vocab"].as_object_mut().unwrap();
    vocabulary.remove("[SEP]");
    vocabulary.extend((10u32..).zip(added).map(|(id, (name, _))| ((*name).to_owned(), id.into())));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, definition.to_string()).unwrap();
    beside.iter().for_each(|(file, text)| std::fs::write(folder.path().join(file), text).unwrap());
    Tokenizer::from_file(&path, None)
}

#[test]
fn a_key_that_occurs_twice_is_refused() {
    let twice = WORD_PIECE.replacen("\"model\"", "\"version\": \"1.0\", \"version\": \"1.0\", \"model\"", 1);
    assert_ne!(twice, WORD_PIECE);
    let error = Tokenizer::from_definition(Path::new("tokenizer.json"), twice, None).unwrap_err();
    assert!(error.to_string().contains("`version` occurs twice"), "{error}");
}

/// A special token goes before one that has a usual name only; what files beside say goes before both.
#[test]
fn the_end_of_a_document_is_what_files_say_or_special() {
    let gemma = [("<eos>", true), ("</s>", false)];
    let tokenizer = with_added(&gemma, &[]).unwrap();
    assert_eq!((tokenizer.end_of_document(), tokenizer.end_of_document_is_special()), (10, true));
    assert!(tokenizer.warnings().is_empty());
    let two = with_added(&[("<eos>", true), ("</s>", true)], &[]).unwrap();
    assert_eq!(two.end_of_document(), 11);
    insta::assert_snapshot!(two.warnings().join("; "), @"documents end with `</s>`; `<eos>` is special too: to use it, pass --eod-token '<eos>'");
    let plain = with_added(&[("<eos>", false)], &[]).unwrap();
    assert_eq!((plain.end_of_document(), plain.end_of_document_is_special()), (10, false));
    assert!(plain.warnings()[0].contains("does not mark as special"));
    let unclear = with_added(&[("<bos>", true), ("</s>", false)], &[]).unwrap_err();
    assert!(
        unclear
            .to_string()
            .contains("`</s>` may end documents, but is not among the tokens marked as special, which are `<bos>`")
    );
    assert!(unclear.hint().contains("--eod-token TOKEN"));
    let all = [("<|endoftext|>", true), ("<|im_end|>", true), ("<eos>", true)];
    for (file, text, id, warnings) in [
        ("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#, 11, 1),
        ("special_tokens_map.json", r#"{"eos_token": {"content": "<eos>", "lstrip": false}}"#, 12, 1),
        ("generation_config.json", r#"{"eos_token_id": 12}"#, 12, 1),
        ("config.json", r#"{"eos_token_id": [11, 10]}"#, 10, 0),
        ("config.json", r#"{"eos_token_id": null}"#, 10, 1),
        ("config.json", r#"{"eos_token_id": [11, "5"]}"#, 11, 2),
        ("config.json", r#"{"eos_token_id": [11, -1]}"#, 11, 1),
        ("config.json", r#"{"eos_token_id": 99}"#, 10, 2),
        ("tokenizer_config.json", "no JSON", 10, 2),
    ] {
        let found = with_added(&all, &[(file, text)]).unwrap();
        assert_eq!((found.end_of_document(), found.warnings().len()), (id, warnings), "{text}: {:?}", found.warnings());
    }
    let decoder = r#"{"added_tokens_decoder": {"10": {"content": "<eos>"}, "90": {"content": "<tool>"}}}"#;
    for (file, text) in [("tokenizer_config.json", decoder), ("added_tokens.json", r#"{"<eos>": 10, "<tool>": 90}"#)] {
        let warnings = with_added(&all, &[(file, text)]).unwrap().warnings();
        let found = warnings
            .iter()
            .any(|said| said.contains("add tokens that it does not have") && said.contains(": `<tool>`;"));
        assert!(found, "{file}: {warnings:?}");
    }
    let both = [("tokenizer_config.json", r#"{"eos_token": "<eos>"}"#), ("config.json", r#"{"eos_token_id": 10}"#)];
    let found = with_added(&all, &both).unwrap();
    assert_eq!(found.end_of_document(), 12);
    assert!(
        found.warnings()[0]
            .contains("tokenizer_config.json names `<eos>` as the end of a text, and config.json another token")
    );
    let missing = with_added(&all, &[("tokenizer_config.json", r#"{"eos_token": "<none>"}"#)]).unwrap_err().to_string();
    assert!(missing.contains("names `<none>` as the end of a text"), "{missing}");
}
