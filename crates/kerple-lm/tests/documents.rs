//! Separate documents in training and evaluation: targets in another document are not scored, the loss is the mean over the
//! scored targets of the whole batch, and resuming, micro-batches and ranks keep its bits; rows of both masks stay apart.

use crate::common::on_ranks;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::parameters;
use kerple_core::attention::PackedDocuments;
use kerple_data::{PrepareOptions, Sources, prepare};
use kerple_lm::checkpoint;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::{DataSource, Split};
use kerple_lm::evaluate::{EvalCheckpoint, EvalRequest, EvalRun, Protocol, SegmentCount, of_source};
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::objective::{NextTokenPrediction, SequenceBatch};
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::train::{TrainEvent, TrainSession, train};
use kerple_lm::train_state::{AdamWConfig, AdamWStep, TrainState};
use kerple_run::{DocumentMask, EvaluationRow, MetricsRow, Within, read_rows};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What ends a document in a text of bytes.
const END: u32 = 0;

fn letters(places: std::ops::Range<usize>) -> String {
    places.map(|at| char::from(b'a' + ((at * at + at / 3) % 7) as u8)).collect()
}

/// Documents of 1 to 40 letters, so that most sequences contain several.
pub fn corpus(folder: &Path, documents: usize) -> std::path::PathBuf {
    prepared(folder, (0..documents).map(|file| (format!("{file:03}.txt"), letters(file..file + 1 + (file * 17) % 40))))
}

/// Files of texts, prepared as bytes.
fn prepared(folder: &Path, files: impl Iterator<Item = (String, String)>) -> std::path::PathBuf {
    let (input, out) = (folder.join("texts"), folder.join("data"));
    fs::create_dir_all(&input).unwrap();
    files.for_each(|(name, text)| fs::write(input.join(name), text).unwrap());
    let options = PrepareOptions { split: [0.5, 0.1, 0.4], ..PrepareOptions::new(Sources::paths(&[&input]), &out) };
    prepare(&options, &mut |_| {}).unwrap();
    out
}

pub fn config(data: &Path, set: &[&str]) -> RunConfig {
    let text = format!(
        "seed = 3\ndata.path = {:?}\nencoding.kind = \"kerple_log\"\nmodel.n_layers = 1\nmodel.n_heads = 2\nmodel.head_dim = 8\n\
         [train]\ntrain_len = 24\nbatch_size = 6\nmicro_batch_size = 1\nsteps = 5\nlearning_rate = 1e-2\nsave_interval = 2\n\
         log_every = 1\neval_interval = 2\neval_sequences = 7\n",
        data.display().to_string()
    );
    RunConfig::parse(&text, "test", &set.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()).unwrap()
}

const SEPARATE: &str = "data.documents=separate";
const SOFTMAX: &str = "model.block.attention=softmax";
const LINEAR: &str = "model.block.attention={ linear = { feature_map = \"elu\" } }";

/// Trains in one session; `stop_after` ends it early.
pub fn session(ranks: &Ranks, config: &RunConfig, folder: &Path, stop_after: Option<u64>) -> Vec<String> {
    let (stop, runtime) = (AtomicBool::new(false), Runtime::cpu(None).with_ranks(ranks.clone()));
    let source = DataSource::open(&config.data).unwrap();
    let plan = Plan::new(config, source.facts()).unwrap();
    let (batches, run, mut notes) = (source.batches(&plan).unwrap(), RunFolder::new(folder), Vec::new());
    let session =
        TrainSession { plan: &plan, run: &run, batches: &batches, stop: &stop, strict: true, runtime: &runtime };
    train(&session, &mut |event| match event {
        TrainEvent::Step(progress) => stop.store(stop_after == Some(progress.step), Ordering::Relaxed),
        TrainEvent::Note(note) => notes.push(note),
    })
    .unwrap();
    notes
}

/// What depends on neither ranks nor sessions: the weights, and the rows without times.
fn trace(folder: &Path) -> (Vec<u8>, Vec<MetricsRow>) {
    let mut rows = read_rows::<MetricsRow>(&folder.join("metrics.jsonl")).unwrap().rows;
    rows.iter_mut().for_each(|row| (row.seconds, row.step_seconds, row.comm_wait_fraction) = (0.0, 0.0, None));
    let (_, newest) = checkpoint::list(folder).unwrap().pop().unwrap();
    (fs::read(newest.join("model.safetensors")).unwrap(), rows)
}

#[test]
fn training_keeps_its_bits_over_sessions_and_ranks() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let folder = |name: &str| place.path().join(name);
    for (encoding, attention) in
        [("kerple_log", SOFTMAX), ("rotary", SOFTMAX), ("sinusoidal", SOFTMAX), ("fire", SOFTMAX), ("alibi", LINEAR)]
    {
        let encoding = format!("encoding.kind={encoding}");
        let separate = config(&data, &[SEPARATE, &encoding, attention]);
        let name = |what: &str| folder(&format!("{what}-{encoding}"));
        session(&Ranks::alone(), &separate, &name("whole"), None);
        let whole = trace(&name("whole"));
        session(&Ranks::alone(), &separate, &name("halves"), Some(3));
        session(&Ranks::alone(), &separate, &name("halves"), None);
        assert!(trace(&name("halves")) == whole, "{encoding}: resumed");
        for count in [2, 3] {
            let shared = name(&format!("ranks{count}"));
            on_ranks(count, |ranks| session(&ranks, &separate, &shared, None));
            assert!(trace(&shared) == whole, "{encoding}: {count} ranks");
        }
        // a token counts as processed whether it is scored or not
        for row in &whole.1 {
            assert_eq!(row.tokens, row.step * 144);
            let scored = row.scored.unwrap();
            assert!((72..144).contains(&scored), "{scored} of 144 targets");
        }
        assert!(whole.1.iter().any(|row| row.val_loss.is_some_and(f64::is_finite)));
        session(&Ranks::alone(), &config(&data, &[&encoding, attention]), &name("joined"), None);
        let joined = trace(&name("joined"));
        assert!(joined.0 != whole.0 && joined.1.iter().all(|row| row.scored.is_none()), "{encoding}");
    }
}

#[test]
fn both_masks_read_the_same_windows() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    for sampling in ["random", "megatron"] {
        let batches = |set: &[&str]| {
            let config = config(&data, &[set, &[&format!("data.sampling={sampling}")]].concat());
            let source = DataSource::open(&config.data).unwrap();
            let plan = Plan::new(&config, source.facts()).unwrap();
            let batches = source.batches(&plan).unwrap();
            [batches.batch(2, 0..6).unwrap(), batches.validation(0..3).unwrap()]
        };
        for (joined, separate) in batches(&[]).into_iter().zip(batches(&[SEPARATE])) {
            assert_eq!((&joined.tokens, &joined.targets), (&separate.tokens, &separate.targets));
            assert_eq!((joined.documents, joined.scored), (None, None));
            let (documents, scored) = (separate.documents.unwrap(), separate.scored.unwrap());
            let ids = documents.document_ids();
            // what comes after an end is the first token of the next
            for (at, token) in separate.tokens.iter().enumerate() {
                assert_eq!(scored[at], *token != END, "{sampling}: target {at}");
                let same_row = (at + 1) % 24 != 0;
                assert!(!same_row || (ids[at] == ids[at + 1]) == scored[at], "{sampling}: token {at}");
            }
        }
    }
}

fn decoder(set: &[&str], data: &Path) -> (Decoder, Plan) {
    let config = config(data, set);
    let plan = Plan::new(&config, DataSource::open(&config.data).unwrap().facts()).unwrap();
    (Decoder::new(&plan, &kerple_lm::device().autodiff()), plan)
}

/// A batch of two sequences of documents, of which one scores 2 targets and the other 5.
fn uneven() -> SequenceBatch {
    let text = kerple_data::TextBatch {
        tokens: (0..12).map(|at| 97 + at * at % 7).collect(),
        targets: (0..12).map(|at| 97 + (at + 1) * 3 % 7).collect(),
        batch: 2,
        seq_len: 6,
        document_starts: vec![vec![0, 1, 2, 4, 6], vec![0, 5]],
    };
    SequenceBatch::of_documents(text)
}

/// The loss is the sum over scored targets by their number in the whole batch, and not a mean of means.
#[test]
fn micro_batches_share_one_mean() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 40);
    for kind in ["encoding.kind=kerple_log", "encoding.kind=learned", "encoding.kind=fox"] {
        let (model, plan) = decoder(&[SEPARATE, kind], &data);
        let names = parameters::names(&model);
        let state = TrainState::new(model, NextTokenPrediction::default(), kerple_lm::train_state::settings(&plan));
        let (batch, pass) = (uneven(), ForwardContext::training(1, 2));
        let whole = state.gradients(std::slice::from_ref(&batch), pass);
        let parts = state.gradients(&batch.split(1).unwrap(), pass);
        // every document alone: a batch of one sequence without a mask
        let documents = batch.documents.clone().unwrap();
        let (mut sum, mut count) = (0.0, 0);
        for document in documents.documents() {
            let first = document.row * batch.len + document.first_key;
            let own = first..first + document.keys;
            let tokens = TokenBatch { ids: &batch.tokens[own.clone()], batch: 1, len: document.keys, documents: None };
            let model = parameters::without_autodiff(state.model());
            let losses = model.token_losses(tokens, &batch.targets[own.clone()], &ForwardContext::evaluation(0));
            let scored = &batch.scored.as_ref().unwrap()[own];
            sum += losses.iter().zip(scored).filter(|(_, scored)| **scored).map(|(loss, _)| loss).sum::<f64>();
            count += scored.iter().filter(|scored| **scored).count();
        }
        assert_eq!(count, 7);
        // f32 sums in another order
        assert!((whole.loss - sum / 7.0).abs() < 1e-6 * whole.loss, "{kind}: {} {}", whole.loss, sum / 7.0);
        crate::common::assert_same_gradients(parts, whole, &names, kind);
    }
}

#[test]
fn a_batch_that_scores_nothing_is_an_update_without_a_loss() {
    let place = tempfile::tempdir().unwrap();
    let (model, _) = decoder(&[SEPARATE], &corpus(place.path(), 40));
    let before = parameters::collect(&model);
    let config = AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0, clip: 1.0 };
    let mut state = TrainState::new(model, NextTokenPrediction::default(), config);
    let batch = SequenceBatch { scored: Some(vec![false; 12]), ..uneven() };
    let update = AdamWStep { learning_rate: 0.1, adam_step: 1 };
    let done = state.step(std::slice::from_ref(&batch), ForwardContext::training(1, 2), update).unwrap();
    assert_eq!((done.loss, done.grad_norm, done.scored), (0.0, 0.0, 0));
    for (before, after) in before.iter().zip(parameters::collect(state.model())) {
        assert_eq!(before.array.slice::<f32>(), after.array.slice::<f32>(), "{}", before.name);
    }
    // halves of a batch, of which one scores nothing
    let half = SequenceBatch { scored: Some([vec![false; 6], vec![true; 6]].concat()), ..batch };
    let found = state.gradients(&half.split(1).unwrap(), ForwardContext::training(1, 2));
    assert!(found.loss.is_finite() && found.loss > 0.0);
}

#[test]
fn plans_keep_their_hashes_and_refuse_what_cannot_restart() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 40);
    let facts = DataSource::open(&config(&data, &[]).data).unwrap().facts();
    let plan = |set: &[&str]| Plan::new(&config(&data, set), facts.clone());
    let (usual, joined) = (plan(&[]).unwrap(), plan(&["data.documents=joined"]).unwrap());
    assert_eq!(usual, joined);
    assert!(!serde_json::to_string(&joined).unwrap().contains("documents"));
    let separate = plan(&[SEPARATE]).unwrap();
    assert_eq!(serde_json::to_value(&separate).unwrap()["data"]["documents"], "separate");
    assert!(separate.hash != joined.hash && separate.trajectory_hash() != joined.trajectory_hash());
    assert!(joined.check_resume(&separate, 0).unwrap_err().to_string().contains("data.documents = \"separate\""));

    let refused = |set: &[&str]| {
        let error = plan(&[&[SEPARATE], set].concat()).unwrap_err();
        assert!(error.is_misuse(), "{error}");
        [error.to_string(), error.hint()]
    };
    assert_eq!(
        refused(&["encoding={kind=\"rotary\", randomized=99}"]),
        [
            r#"data.documents: "separate" is not supported: rotary-randomized99 has `randomized`, which draws positions for whole sequences and not for each document"#,
            r#"set data.documents = "joined", or remove randomized"#,
        ]
    );
    assert_eq!(
        refused(&["data.path=", "data.task=\"even_pairs\""]),
        [
            r#"data.documents: "separate" is not supported: sequences of tasks do not consist of documents"#,
            r#"remove it; it is for texts"#,
        ]
    );
    assert_eq!(
        refused(&["train.chunk_len=128", "encoding.kind=none", LINEAR]),
        [
            r#"data.documents: "separate" is not supported: train.chunk_len processes sequences in chunks, which may not consist of documents"#,
            r#"remove train.chunk_len, or set data.documents = "joined""#,
        ]
    );
    let unknown =
        RunConfig::parse("data.path = \"x\"\ndata.documents = \"packed\"\nencoding.kind = \"none\"", "here", &[]);
    assert!(unknown.unwrap_err().to_string().contains("expected `joined` or `separate`"));
}

#[test]
fn a_corpus_of_one_document_is_noted() {
    let place = tempfile::tempdir().unwrap();
    let splits = ["train", "valid", "test"].into_iter().zip([0, 7000, 14_000]);
    let data = prepared(place.path(), splits.map(|(split, at)| (format!("{split}.txt"), letters(at..at + 6000))));
    let separate = config(&data, &[SEPARATE, "train.eval_interval=0"]);
    let notes = session(&Ranks::alone(), &separate, &place.path().join("run"), None);
    assert!(notes.iter().any(|note| note.starts_with("the training split is one document, so")), "{notes:?}");
}

/// Evaluates a run; its new rows.
fn evaluate(run: &RunFolder, data: &Path, request: &EvalRequest) -> kerple_lm::Result<Vec<EvaluationRow>> {
    let (runtime, known) = (Runtime::cpu(None), run.evaluations()?);
    let source = DataSource::open(&config(data, &[]).data)?;
    let trained = run.load_any(&runtime.device, true)?;
    let of = EvalCheckpoint { plan: &trained.plan, step: trained.state.step, model: &*trained.model };
    let scored = of_source(&source, Split::Test, (&trained.plan, &run.special_tokens()?), request, &known)?;
    EvalRun::new(run, of, &*scored, &runtime)?.run(&AtomicBool::new(false), &mut |_| {})?;
    Ok(run.evaluations()?.split_off(known.len()))
}

fn request(protocol: Protocol, lengths: &[usize], documents: Option<DocumentMask>) -> EvalRequest {
    let (lengths, n_segments) = (lengths.to_vec(), SegmentCount::Exactly(5));
    let (segment_len, within) = (Some(64), Within::Split);
    EvalRequest { lengths, protocol, n_segments, segment_len, seed: 3, per_position: true, documents, within }
}

#[test]
fn evaluations_of_both_masks_are_rows_of_their_own() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let runs = [&["train.steps=2"][..], &["train.steps=2", SEPARATE]].map(|set| {
        let folder = place.path().join(format!("run{}", set.len()));
        session(&Ranks::alone(), &config(&data, set), &folder, None);
        RunFolder::new(&folder)
    });
    let [joined, separate] = DocumentMask::ALL;
    for (run, trained) in runs.iter().zip([joined, separate]) {
        let other = if trained == joined { separate } else { joined };
        let usual = evaluate(run, &data, &request(Protocol::Last(16), &[16, 64], None)).unwrap();
        assert_eq!(usual.iter().map(|row| row.documents).collect::<Vec<_>>(), [trained; 2]);
        // the same again, by name, is known
        assert!(evaluate(run, &data, &request(Protocol::Last(16), &[16, 64], Some(trained))).unwrap().is_empty());
        let others = evaluate(run, &data, &request(Protocol::Last(16), &[16, 64], Some(other))).unwrap();
        assert_eq!(others.iter().map(|row| row.documents).collect::<Vec<_>>(), [other; 2]);
        assert!(!usual[0].same_text(&others[0]));
        for row in usual.iter().chain(&others) {
            assert_eq!(row.contradiction(), None);
            let bins = row.nll_by_own_context.as_ref().unwrap();
            let sum: f64 = bins.iter().map(|bin| bin.nll * bin.tokens as f64).sum();
            assert!((sum / row.tokens as f64 - row.nll).abs() < 1e-12);
            let firsts = bins.iter().filter(|bin| bin.from == 0).map(|bin| bin.tokens).sum::<u64>();
            assert_eq!(firsts == 0, row.documents == separate, "first tokens are not scored");
            assert_eq!(row.tokens + if row.documents == separate { 80 - row.tokens } else { 0 }, 80);
        }
        // targets are the same tokens at every length
        let tokens: Vec<u64> = usual.iter().chain(&others).map(|row| row.tokens).collect();
        assert!(tokens[0] == tokens[1] && tokens[2] == tokens[3]);
    }
}

#[test]
fn within_documents_every_scored_token_has_far_context() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let run = RunFolder::new(place.path().join("run"));
    session(&Ranks::alone(), &config(&data, &["train.steps=2"]), run.path(), None);
    let anywhere = EvalRequest { segment_len: Some(8), ..request(Protocol::Last(4), &[4, 8], None) };
    let asked = EvalRequest { within: Within::Document, ..anywhere.clone() };
    let rows = evaluate(&run, &data, &asked).unwrap();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!((row.text.within, row.tokens, row.contradiction()), (Within::Document, 20, None));
        let bins = row.nll_by_own_context.as_ref().unwrap();
        assert!(bins.iter().all(|bin| bin.from >= 8), "{bins:?}");
    }
    assert!(evaluate(&run, &data, &asked).unwrap().is_empty(), "the same again is known");
    let others = evaluate(&run, &data, &anywhere).unwrap();
    assert!(others.len() == 2 && !others[0].same_text(&rows[0]), "anywhere in the split is another text");
    let bins = others[0].nll_by_own_context.as_ref().unwrap();
    assert!(bins.iter().any(|bin| bin.from < 8), "{bins:?}");
    for (asked, part) in [
        (
            EvalRequest { n_segments: SegmentCount::Exactly(20), segment_len: Some(40), ..asked.clone() },
            "20 segments within documents were requested, the split has ",
        ),
        (
            EvalRequest { protocol: Protocol::Segments, ..asked.clone() },
            "--within document is for last:COUNT, not for segments",
        ),
        (EvalRequest { segment_len: None, ..asked.clone() }, "needs the tokens of its own document"),
        (EvalRequest { protocol: Protocol::Rolling(8), lengths: vec![8], ..asked }, "not for rolling:8"),
    ] {
        let error = evaluate(&run, &data, &asked).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// A row under separate documents is the mean over documents that the model reads alone.
#[test]
fn separate_evaluation_is_that_of_the_documents_alone() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let run = RunFolder::new(place.path().join("run"));
    session(&Ranks::alone(), &config(&data, &["train.steps=2"]), run.path(), None);
    let asked = request(Protocol::Nonoverlapping, &[64], Some(DocumentMask::Separate));
    let row = evaluate(&run, &data, &asked).unwrap().remove(0);
    let source = DataSource::open(&config(&data, &[]).data).unwrap();
    let text = source.text(Split::Test).unwrap();
    let trained = run.load_any(&kerple_lm::device(), true).unwrap();
    let (model, stretch) = (trained.model.decoder().unwrap(), 64 * 5);
    let begin = kerple_data::random_segments(kerple_lm::sequences::EvalText::len(&text), stretch, 1, 3)[0];
    let (mut sum, mut count) = (0.0, 0);
    for start in (begin..begin + stretch).step_by(64) {
        let tokens = kerple_lm::sequences::EvalText::read(&text, start..start + 65).unwrap();
        let mut document = 0;
        while document < 64 {
            let end = (document..64).find(|at| tokens[*at] == END).map_or(64, |at| at + 1);
            let ids = &tokens[document..end];
            let batch = TokenBatch { ids, batch: 1, len: ids.len(), documents: None };
            let losses = model.token_losses(batch, &tokens[document + 1..end + 1], &ForwardContext::evaluation(3));
            // what follows the end of a document is in the next
            let scored = losses.len() - usize::from(ids[ids.len() - 1] == END);
            sum += losses[..scored].iter().sum::<f64>();
            count += scored as u64;
            document = end;
        }
    }
    assert_eq!(row.tokens, count);
    assert!((row.nll - sum / count as f64).abs() < 1e-6 * row.nll, "{} {}", row.nll, sum / count as f64);
}

#[test]
fn rolling_evaluation_does_not_depend_on_the_mask_of_training() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let run = RunFolder::new(place.path().join("run"));
    session(&Ranks::alone(), &config(&data, &["train.steps=2"]), run.path(), None);
    let rolling = EvalRequest { per_position: false, segment_len: None, ..request(Protocol::Rolling(16), &[16], None) };
    let joined = evaluate(&run, &data, &rolling).unwrap().remove(0);
    // the same weights as those of a run that was trained with separate documents
    let plan = fs::read_to_string(run.path().join("plan.json")).unwrap();
    let source = DataSource::open(&config(&data, &[]).data).unwrap();
    let separate = Plan::new(&config(&data, &["train.steps=2", SEPARATE]), source.facts()).unwrap();
    let trained = run.load_any(&kerple_lm::device(), true).unwrap();
    let (runtime, known) = (Runtime::cpu(None), Vec::new());
    let of = EvalCheckpoint { plan: &separate, step: 2, model: &*trained.model };
    let special = run.special_tokens().unwrap();
    let scored = of_source(&source, Split::Test, (&separate, &special), &rolling, &known).unwrap();
    fs::remove_file(run.evaluation_file()).unwrap();
    EvalRun::new(&run, of, &*scored, &runtime).unwrap().run(&AtomicBool::new(false), &mut |_| {}).unwrap();
    let again = run.evaluations().unwrap().remove(0);
    let of =
        |row: &EvaluationRow| (row.nll.to_bits(), row.tokens, row.bytes, row.documents, row.nll_by_segment.clone());
    assert_eq!(of(&joined), of(&again));
    assert!(!plan.contains("separate"));
    let asked = EvalRequest { documents: Some(DocumentMask::Separate), ..rolling };
    let refused = evaluate(&run, &data, &asked).unwrap_err();
    assert!(refused.to_string().contains("does not apply to rolling:16"), "{refused}");
}

#[test]
fn evaluation_refuses_what_cannot_be_separate() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let run = RunFolder::new(place.path().join("run"));
    let randomized = "encoding={kind=\"rotary\", randomized=99}";
    session(&Ranks::alone(), &config(&data, &["train.steps=1", randomized]), run.path(), None);
    let asked = request(Protocol::Segments, &[64], Some(DocumentMask::Separate));
    let error = evaluate(&run, &data, &asked).unwrap_err();
    assert!(error.to_string().contains("has `randomized`"), "{error}");
    // a learned table needs to be as long as the longest document only
    let learned = RunFolder::new(place.path().join("learned"));
    let set = ["train.steps=1", "encoding.kind=learned", "train.train_len=48"];
    session(&Ranks::alone(), &config(&data, &set), learned.path(), None);
    assert_eq!(evaluate(&learned, &data, &asked).unwrap().len(), 1, "documents of the text have at most 41 tokens");
    let joined = evaluate(&learned, &data, &request(Protocol::Segments, &[64], None)).unwrap_err();
    assert!(joined.to_string().contains("64 were requested"), "{joined}");
}

#[test]
fn packed_rows_can_be_shared_out() {
    let documents = PackedDocuments::from_lengths([&[2usize, 4][..], &[6], &[1, 1, 4]], 6).unwrap();
    let batch = SequenceBatch {
        tokens: (0..18).collect(),
        targets: (1..19).collect(),
        documents: Some(Arc::new(documents.clone())),
        rows: 3,
        len: 6,
        ..SequenceBatch::default()
    };
    for (row, part) in batch.split(1).unwrap().into_iter().enumerate() {
        assert_eq!(*part.documents.unwrap(), documents.slice_rows(row..row + 1));
    }
}
