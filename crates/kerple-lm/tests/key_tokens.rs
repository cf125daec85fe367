//! Key tokens: chosen by other runs as their definition says, scored alike at every length, and refused where the runs do not fit.

use crate::common::on_ranks;
use crate::documents::{config, corpus, session};
use kerple_burn::forward_context::ForwardContext;
use kerple_lm::corpus::{DataSource, Split};
use kerple_lm::evaluate::{
    EvalCheckpoint, EvalData, EvalRequest, EvalRun, KeyTokenEval, Protocol, SegmentCount, TextDocuments, TextWindow,
    losses, of_source,
};
use kerple_lm::ranks::Ranks;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::EvalText;
use kerple_run::{DocumentMask, EvaluationRow, KeyTokens, Within};
use std::path::Path;
use std::sync::atomic::AtomicBool;

const SPAN: usize = 64;
const SEGMENTS: usize = 3;

/// Far context gains little here: more than rounding counts, whatever the loss.
const RULE: &str = "key:0.001:-9:16:6";

fn request(protocol: &str, lengths: &[usize]) -> EvalRequest {
    let (lengths, n_segments) = (lengths.to_vec(), SegmentCount::Exactly(SEGMENTS));
    let (protocol, segment_len) = (protocol.parse().unwrap(), Some(SPAN));
    let (documents, within) = (None, Within::Split);
    EvalRequest { lengths, protocol, n_segments, segment_len, seed: 3, per_position: false, documents, within }
}

/// Evaluates a run on the key tokens of others; its new rows.
fn evaluate(
    ranks: &Ranks,
    run: &Path,
    (data, evaluators): (&Path, &[&Path]),
    request: &EvalRequest,
) -> kerple_lm::Result<Vec<EvaluationRow>> {
    let (run, runtime) = (RunFolder::new(run), Runtime::cpu(None).with_ranks(ranks.clone()));
    let (known, source) = (run.evaluations()?, DataSource::open(&config(data, &[]).data)?);
    let trained = run.load_any(&runtime.device, true)?;
    let evaluators = evaluators.iter().map(|folder| RunFolder::new(*folder).load_any(&runtime.device, true));
    let evaluators = evaluators.collect::<kerple_lm::Result<Vec<_>>>()?;
    let Protocol::Key(rule) = request.protocol else { panic!("another protocol") };
    let special = run.special_tokens()?;
    let of = (rule, request.clone());
    let scored =
        KeyTokenEval::new((&trained.plan, &special), (source.text(Split::Test)?, &known), of, (evaluators, &runtime))?;
    let of = EvalCheckpoint { plan: &trained.plan, step: trained.state.step, model: &*trained.model };
    EvalRun::new(&run, of, &scored, &runtime)?.run(&AtomicBool::new(false), &mut |_| {})?;
    assert_eq!(scored.lengths(), request.lengths);
    Ok(run.evaluations()?.split_off(known.len()))
}

/// The loss of the token at a place of the text by a run that reads so many tokens before it.
fn loss(run: &Path, text: &dyn EvalText, token: usize, context: usize) -> f64 {
    let trained = RunFolder::new(run).load_any(&Runtime::cpu(None).device, true).unwrap();
    let windows = [TextWindow::new(token - context, context, context - 1)];
    let documents = TextDocuments::of(text, DocumentMask::Joined);
    let pass = (ForwardContext::evaluation(trained.plan.seed), &Ranks::alone());
    let found = losses(trained.model.decoder().unwrap(), text, (&windows, &documents), pass, &mut |_| true);
    found.unwrap().unwrap().mean()
}

#[test]
fn key_tokens_are_those_of_the_definition() {
    let place = tempfile::tempdir().unwrap();
    let data = corpus(place.path(), 240);
    let folder = |name: &str| place.path().join(name);
    for (name, set) in [
        ("run", &["train.steps=3"][..]),
        ("seed", &["train.steps=5", "seed=4"]),
        ("rotary", &["train.steps=5", "encoding.kind=rotary"]),
    ] {
        session(&Ranks::alone(), &config(&data, set), &folder(name), None);
    }
    let [run, seed, rotary] = ["run", "seed", "rotary"].map(folder);
    let both = [&*seed, &*rotary];
    let asked = request(RULE, &[16, 20, SPAN]);
    let rows = evaluate(&Ranks::alone(), &run, (&data, &both), &asked).unwrap();

    // token by token, each with a window of its own
    let source = DataSource::open(&config(&data, &[]).data).unwrap();
    let text = source.text(Split::Test).unwrap();
    let starts = kerple_data::random_segments(text.len(), SPAN, SEGMENTS, 3);
    let mean =
        |token: usize, context: usize| both.map(|run| loss(run, &text, token, context)).iter().sum::<f64>() / 2.0;
    let is_key = |start: usize, place: usize| {
        let (full, short) = (mean(start + place, place), mean(start + place, 16 + (place - 16) % 6));
        short - full > 0.001 && full < 9.0
    };
    let keys: Vec<(usize, usize)> = (0..SEGMENTS)
        .flat_map(|at| (16..=SPAN).map(move |place| (at, place)))
        .filter(|(at, place)| is_key(starts[*at], *place))
        .collect();
    assert!((15..120).contains(&keys.len()), "{} of {} tokens", keys.len(), SEGMENTS * 49);
    for (row, length) in rows.iter().zip([16, 20, SPAN]) {
        let found = row.key_tokens.as_ref().unwrap();
        assert_eq!((row.eval_len, row.contradiction()), (length as u64, None));
        assert_eq!((found.candidates, row.protocol.as_str()), (SEGMENTS as u64 * 49, RULE));
        assert_eq!(row.tokens, keys.len() as u64);
        // windows move by 6, the last by what is left
        let start = |place: usize| (place.saturating_sub(length).div_ceil(6) * 6).min(SPAN - length);
        let expected: f64 =
            keys.iter().map(|(at, place)| loss(&run, &text, starts[*at] + place, place - start(*place))).sum();
        let expected = expected / keys.len() as f64;
        assert!((row.nll - expected).abs() < 1e-5, "{length}: {} and {expected}", row.nll);
    }
    let (tokens, nll) = KeyTokens::pooled(&rows[0].key_tokens.as_ref().unwrap().segments);
    assert!(tokens == rows[0].tokens && (nll - rows[0].nll).abs() < 1e-12);

    // the same again is known, and other evaluators choose other keys
    assert!(evaluate(&Ranks::alone(), &run, (&data, &both), &asked).unwrap().is_empty());
    let others = evaluate(&Ranks::alone(), &run, (&data, &both[..1]), &asked).unwrap();
    assert!(others.len() == 3 && !others[0].same_text(&rows[0]) && others[0].same_text(&others[1]));

    // ranks share windows, and keep the bits
    let copy = folder("copy");
    session(&Ranks::alone(), &config(&data, &["train.steps=3"]), &copy, None);
    on_ranks(3, |ranks| evaluate(&ranks, &copy, (&data, &both), &asked).map(drop).unwrap());
    let shared = RunFolder::new(&copy).evaluations().unwrap();
    for (row, other) in rows.iter().zip(&shared) {
        assert_eq!((row.nll.to_bits(), &row.key_tokens), (other.nll.to_bits(), &other.key_tokens));
    }

    // first tokens of separate documents are not scored, by any run
    let separate = EvalRequest { documents: Some(DocumentMask::Separate), ..asked };
    let rows = evaluate(&Ranks::alone(), &run, (&data, &both), &separate).unwrap();
    assert!(rows.iter().all(|row| row.contradiction().is_none()));
    assert!(rows[0].key_tokens.as_ref().unwrap().candidates < SEGMENTS as u64 * 49);
}

#[test]
fn evaluators_that_do_not_fit_are_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let (data, other) = (corpus(&place.path().join("one"), 240), corpus(&place.path().join("other"), 200));
    let folder = |name: &str| place.path().join(name);
    for (name, data, set) in [
        ("run", &data, &["train.steps=2"][..]),
        ("longer", &data, &["train.steps=3"]),
        ("seed", &data, &["train.steps=2", "seed=4"]),
        ("text", &other, &["train.steps=2", "seed=4"]),
        ("limited", &data, &["train.steps=2", "encoding.kind=learned"]),
    ] {
        session(&Ranks::alone(), &config(data, set), &folder(name), None);
    }
    let refused = |evaluators: &[&str], asked: &EvalRequest| {
        let evaluators: Vec<_> = evaluators.iter().map(|name| folder(name)).collect();
        let evaluators: Vec<&Path> = evaluators.iter().map(|folder| &**folder).collect();
        evaluate(&Ranks::alone(), &folder("run"), (&data, &evaluators), asked).unwrap_err().to_string()
    };
    let usual = request(RULE, &[16]);
    for (evaluators, part) in [
        (&[][..], "key:0.001:-9:16:6 needs a run that chooses the key tokens"),
        (&["run"], "evaluator kerple_log, seed 3: the evaluated run has the same encoding and seed"),
        (&["longer"], "the same encoding and seed"),
        (&["seed", "seed"], "evaluator kerple_log, seed 4: the run was given twice"),
        (&["text"], "evaluator kerple_log, seed 4: its text is"),
        (&["limited"], "learned is defined for 24 positions, 64 were requested"),
    ] {
        let message = refused(evaluators, &usual);
        assert!(message.contains(part), "{message}");
    }
    for (asked, part) in [
        (request("key:0:-9:17", &[16]), "needs lengths of at least its context, 17; 16 was requested"),
        (request("key:0:-9:64", &[64]), "segments of 64 tokens have no token with more context than 64"),
        (request("key:900:-9:16", &[16]), "none of 147 tokens is a key token by the rule key:900:-9:16:4"),
        (EvalRequest { per_position: true, ..usual.clone() }, "few tokens, whose positions are not comparable"),
    ] {
        let message = refused(&["seed"], &asked);
        assert!(message.contains(part), "{message}");
    }
    let source = DataSource::open(&config(&data, &[]).data).unwrap();
    let run = RunFolder::new(folder("run"));
    let (plan, special) = (run.plan().unwrap().unwrap(), run.special_tokens().unwrap());
    let error = of_source(&source, Split::Test, (&plan, &special), &usual, &[]).err().unwrap();
    assert!(error.hint().contains("--evaluator RUN"), "{}", error.hint());
}
