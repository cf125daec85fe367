mod key_tokens;

use super::*;
use kerple_burn::plan::{FeatureKind, InitKind};
use kerple_core::encoding::Encoding;
use kerple_data::tasks::TaskConfig;
use kerple_lm::config::Pooling;
use kerple_lm::evaluate;
use kerple_lm::plan::DataInfo;
use kerple_lm::runtime::Runtime;
use kerple_lm::tasks;

fn experiment(scale: &str) -> Experiment {
    Experiment::parse(experiment_file("kerple", scale).unwrap(), scale).unwrap()
}

fn facts(vocab_size: usize) -> DataInfo {
    DataInfo { vocab_size, tokenizer: String::new(), train_tokens: 1 << 40, content: String::new() }
}

#[test]
fn shipped_experiments_can_be_run() {
    for ExperimentFile { paper, scale, .. } in FILES {
        let experiment = Experiment::parse(experiment_file(paper, scale).unwrap(), scale).unwrap();
        let items = crate::pages::items(paper);
        for part in &experiment.parts {
            let corpora = experiment.corpora_of(part);
            for (corpus, encoding) in corpora.iter().flat_map(|c| part.encodings.iter().map(move |e| (c, e))) {
                let (data, facts) = match &corpus.task {
                    Some(task) => {
                        (DataConfig { task: Some(task.clone()), ..DataConfig::default() }, tasks::facts(task.facts()))
                    }
                    None => (DataConfig::text("nowhere"), facts(1024)),
                };
                let config = experiment.config(&part.set, corpus, data).unwrap();
                let plan = Plan::new(&RunConfig { encoding: encoding.clone(), ..config }, facts).unwrap();
                for name in &part.evaluate {
                    if corpus.task.is_some() {
                        // never refused, and beyond the training length too where sequences have any
                        let lengths = &experiment.evaluations[name].lengths;
                        assert_eq!(&evaluate::served(&plan, encoding, lengths), lengths, "{scale}: {}", plan.label);
                        let is_cut = matches!(corpus.task, Some(TaskConfig::Lra(_)));
                        assert!(is_cut || lengths.iter().any(|length| *length > plan.train_len));
                        continue;
                    }
                    let asked = &experiment.evaluations[name];
                    let segments = asked.request().segments(plan.train_len, 1 << 40, &[]).unwrap();
                    assert_eq!((segments.segment_len(), segments.n_segments()), (asked.span, asked.segments));
                }
                let scored = part.scores.iter().all(|length| *length <= 1 << 13);
                assert!(scored && (part.scores.is_empty() || corpus.task.is_none()), "{scale}: {:?}", part.scores);
                // every length of a table is a multiple of what its models were trained at, or near it
                let shortest = part.evaluate.iter().flat_map(|name| &experiment.evaluations[name].lengths).min();
                let is_task = corpus.task.is_some();
                assert!(is_task || shortest.is_none_or(|length| *length >= plan.train_len), "{scale}: {part:?}");
            }
            for item in &part.serves {
                assert!(items.contains(item), "{scale}: {item}");
            }
        }
        let served = |item: &&String| {
            let (by, name) = (|list: &[String]| list.contains(item), item.as_str());
            // of the texts, and of the contents of other tables
            ["table1", "claims", "change", "time", "kernels"].contains(&name)
                // larger models
                || (scale == "small" && paper == "dape" && ["table8", "table9", "figure4"].contains(&name))
                || (scale != "paper" && paper == "kerple" && ["table7", "table8"].contains(&name))
                || (scale != "paper" && paper == "spe" && name == "times")
                || by(&experiment.timing.serves)
                || experiment.parts.iter().any(|part| by(&part.serves))
        };
        assert_eq!(items.iter().filter(served).count(), items.len(), "{scale}");
    }
}

#[test]
fn the_papers_scale_is_the_papers() {
    let experiment = experiment("paper");
    let usual = experiment.parts.iter().find(|part| part.serves.contains(&"table3".to_owned())).unwrap();
    let config = experiment.config(&usual.set, &experiment.corpora[0], DataConfig::text("nowhere")).unwrap();
    let config = RunConfig { encoding: usual.encodings[0].clone(), ..config };
    let plan = Plan::new(&config, facts(50_257)).unwrap();
    // Table 2, and 24 values of the kernel
    assert_eq!(
        (plan.parameters, plan.steps, plan.train.batch_size, plan.train_len),
        (162_322_944 + 24, 50_000, 32, 512)
    );
    let planned = planned(&experiment, &["table3".to_owned()]);
    let seeds: BTreeSet<u64> = planned.iter().map(|planned| planned.run.seed).collect();
    assert_eq!(seeds.into_iter().collect::<Vec<_>>(), [1235, 1236, 1237, 1238, 1239]);
    assert_eq!(planned.len(), 8 * 3 * 5);
}

#[test]
fn dape_trains_as_its_paper_says() {
    let experiment = Experiment::parse(experiment_file("dape", "paper").unwrap(), "paper").unwrap();
    for part in experiment.parts.iter().filter(|part| !part.serves.contains(&"che".to_owned())) {
        let config = experiment.config(&part.set, &experiment.corpora[0], DataConfig::text("nowhere")).unwrap();
        let (train, label) = (&config.train, &part.variant);
        assert_eq!((train.adam_betas, train.weight_decay, train.grad_clip), ([0.9, 0.95], 0.1, 1.0), "{label}");
        // the rate falls to a tenth, whatever the size of the model
        assert!((train.min_lr * 10.0 / train.learning_rate - 1.0).abs() < 1e-9, "{label}");
        assert_eq!(
            (config.model.block.init, train.steps, train.warmup_ratio),
            (InitKind::SmallWang, 50_000, 0.01),
            "{label}"
        );
    }
    let trained_at = |item: &str| -> BTreeSet<usize> {
        let parts = experiment.parts.iter().filter(|part| part.serves.contains(&item.to_owned()));
        let config =
            |part: &PartConfig| experiment.config(&part.set, &experiment.corpora[0], DataConfig::text("nowhere"));
        parts.map(|part| config(part).unwrap().train.train_len).collect()
    };
    assert_eq!(["figure2", "figure4", "figure5", "figure6"].map(trained_at), [(); 4].map(|()| [128, 512].into()));
    for planned in planned(&experiment, &[]) {
        // every layer has its own, and the bias of an encoder tells before from after
        let label = planned.run.label.as_str();
        let is_task = experiment.corpus(&planned.run.corpus).task.is_some();
        // all of a model of texts is decayed, the numbers of plain Kerple too
        assert_eq!(label == "kerple_log-decayed-layer", label.starts_with("kerple") && !is_task, "{label}");
        assert!(label != "kerple_log", "{}", planned.run.folder.display());
        assert!(!is_task || !label.contains("alibi") || label.contains("behind"), "{label}");
    }
}

/// The head of the file counts the runs, and the values that are learned of positions.
#[test]
fn the_arms_of_reach_are_alike_as_its_head_says() {
    let experiment = Experiment::parse(experiment_file("reach", "small").unwrap(), "small").unwrap();
    let part = &experiment.parts[0];
    let config = experiment.config(&part.set, &experiment.corpora[0], DataConfig::text("nowhere")).unwrap();
    let encodings = experiment.parts.iter().flat_map(|part| &part.encodings);
    let counts: Vec<(String, usize)> = encodings
        .map(|encoding| {
            let config = RunConfig { encoding: encoding.clone(), ..config.clone() };
            let plan = Plan::new(&config, facts(1024)).unwrap();
            (plan.label, plan.parameters - 658_944)
        })
        .collect();
    let expected = [
        ("inkling-reach=128", 20_480),
        ("kerple_log", 8),
        ("kerple_log-reach128", 8),
        ("kerple_positions", 1048),
        ("alibi", 0),
        ("fox", 1032),
        ("rotary", 0),
        ("kerple_log-reach64", 8),
    ];
    assert_eq!(counts, expected.map(|(label, count)| (label.to_owned(), count)));
    let planned = planned(&experiment, &[]);
    let seeds: BTreeSet<u64> = planned.iter().map(|planned| planned.run.seed).collect();
    assert_eq!((planned.len(), seeds), (132, (6001..=6006).collect()));
}

/// The head of the file tells how many parameters arms that are alike have.
#[test]
fn the_arms_of_equal_have_the_parameters_that_its_head_says() {
    let experiment = Experiment::parse(experiment_file("equal", "small").unwrap(), "small").unwrap();
    let of_part = |part: &PartConfig| {
        let config = experiment.config(&part.set, &experiment.corpora[0], DataConfig::text("nowhere")).unwrap();
        let plan = |encoding: &Encoding| {
            let config = RunConfig { encoding: encoding.clone(), ..config.clone() };
            Plan::new(&config, facts(1024)).unwrap().parameters
        };
        (config.train.steps, part.encodings.iter().map(plan).collect::<Vec<_>>())
    };
    let arms: Vec<_> = experiment.parts.iter().map(of_part).collect();
    assert_eq!(arms, [(1600, vec![679_424, 658_952]), (1600, vec![679_512]), (1880, vec![658_952])]);
    assert_eq!(planned(&experiment, &[]).len(), 72);
}

#[test]
fn runs_are_numbered_by_seed_and_each_is_there_once() {
    let experiment = experiment("small");
    let planned = planned(&experiment, &[]);
    let folders: BTreeSet<&PathBuf> = planned.iter().map(|planned| &planned.run.folder).collect();
    assert_eq!(folders.len(), planned.len());
    // the sum in the head of the file
    assert_eq!(planned.len(), 126 + 24 + 27 + 6);
    assert!(planned.windows(2).all(|pair| pair[0].run.seed <= pair[1].run.seed), "the seed is the outer loop");
    let of = |folder: &str| planned.iter().find(|planned| planned.run.folder == Path::new(folder)).unwrap();
    let log = of("github/kerple_log/seed-1235");
    assert_eq!(log.run.evaluate, ["positions", "positions_window", "lengths"]);
    assert!(["table3", "table5", "table6", "figure7"].iter().all(|item| log.run.serves.contains(&(*item).to_owned())));
    assert_eq!(of("arxiv-twice/t5-max_distance=32/seed-1237").run.variant, "twice");
    assert_eq!(of("openwebtext2/rotary-bf16/seed-1236").run.evaluate, ["lengths"]);
}

#[test]
fn a_stage_is_done_before_the_next() {
    let experiment = Experiment::parse(experiment_file("dape", "small").unwrap(), "small").unwrap();
    let planned = planned(&experiment, &[]);
    let of = |folder: &str| planned.iter().position(|planned| planned.run.folder == Path::new(folder)).unwrap();
    // all seeds of the first stage, though the second has the first seed too
    assert!(of("arxiv/dape/seed-1237") < of("arxiv-512/dape/seed-1235"));
    assert!(of("arxiv-512/dape/seed-1237") < of("arxiv-1024/dape/seed-1235"));
    let looked = planned.iter().find(|planned| !planned.scores.is_empty()).unwrap();
    assert_eq!((looked.run.folder.to_str(), &looked.scores[..]), (Some("arxiv-512/dape/seed-1235"), &[512, 8192][..]));
    // the sum in the head of the file: 128 and 512 tokens, tables and figures of fewer methods, 1024 tokens, languages
    assert_eq!(planned.len(), 3 * (10 + 10 + 10 + 3) + 3 * (3 + 3 + 2) + 2 + 3 + 5 + 140);
}

#[test]
fn only_what_is_asked_for_is_run() {
    let experiment = experiment("small");
    let runs = |only: &str| planned(&experiment, &[only.to_owned()]).len();
    assert_eq!((runs("table6"), runs("figure5"), runs("table4"), runs("table9")), (5 * 9, 4 * 3, 0, 27));
}

#[test]
fn corpora_have_models_and_probes_of_their_own() {
    let experiment = Experiment::parse(experiment_file("spe", "small").unwrap(), "small").unwrap();
    let planned = planned(&experiment, &[]);
    // the sum in the head of the file
    assert_eq!(planned.len(), 39 + 72);
    let of = |folder: &str| planned.iter().find(|planned| planned.run.folder == Path::new(folder)).unwrap();
    assert_eq!(of("piano/rotary/seed-1236").run.probe, ["attention"]);
    assert_eq!(of("groove/kerple_log/seed-1237").run.probe, ["style"]);
    let text = of("text-relu/sinusoidal/seed-1235");
    assert_eq!((&text.run.evaluate[..], text.run.probe.len()), (&["answers_text".to_owned()][..], 0));
    let set = &experiment.parts[text.part].set;
    let config = experiment.config(set, experiment.corpus("text"), DataConfig::text("nowhere")).unwrap();
    let relu = config.model.block.attention.linear().is_some_and(|linear| linear.feature_map == FeatureKind::Relu);
    assert!(relu && config.model.pooling == Pooling::Cls && config.train.train_len == 256, "{config:?}");
    let usual = experiment.config(&[], experiment.corpus("piano"), DataConfig::text("nowhere")).unwrap();
    assert_eq!((&usual.model, &usual.train), (&experiment.model, &experiment.train));
    let text = experiment_file("spe", "small").unwrap().replacen("probe = [\"style\"]", "probe = [\"tune\"]", 1);
    let error = Experiment::parse(&text, "here.toml").unwrap_err().to_string();
    assert!(error.contains("unknown probe `tune`"), "{error}");
}

#[test]
fn spe_models_begin_and_train_as_released() {
    let experiment = Experiment::parse(experiment_file("spe", "paper").unwrap(), "paper").unwrap();
    for corpus in &experiment.corpora {
        let config = experiment.config(&[], corpus, DataConfig::text("nowhere")).unwrap();
        let (block, is_music) = (&config.model.block, corpus.task.is_none());
        let init = if is_music { InitKind::SmallNormal } else { InitKind::Xavier };
        assert_eq!((block.hidden_dropout, block.lm_head_bias, block.init), (true, is_music, init), "{}", corpus.name);
    }
}

#[test]
fn what_is_not_there_is_named() {
    let request = |paper, scale, only: &[&str]| {
        let only = only.iter().map(|item| (*item).to_owned()).collect();
        Reproduction::new(ReproductionRequest {
            paper,
            scale,
            data: None,
            out: "nowhere".into(),
            only,
            runtime: Runtime::cpu(None),
        })
    };
    for (paper, scale, only, message, hint) in [
        ("rope", "small", &[][..], "`rope`", "kerple"),
        ("kerple", "huge", &[], "`huge`", "smoke, small, paper"),
        ("kerple", "small", &["table11"], "--only table11", "table9"),
    ] {
        let error = request(paper, scale, only).err().unwrap();
        assert!(error.to_string().contains(message) && error.hint().contains(hint), "{error}: {}", error.hint());
        assert!(error.is_misuse());
    }
    let small = request("kerple", "small", &[]).unwrap();
    let error = small.to_prepare(&Arc::default()).err().unwrap();
    assert!(error.hint().contains("--data DIR, the folder that contains web, code, latex"), "{}", error.hint());
}

#[test]
fn results_say_how_they_differ_from_the_papers() {
    for paper in ["dape", "kerple", "spe"] {
        let about = Experiment::parse(experiment_file(paper, "small").unwrap(), paper).unwrap().about;
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../results/{paper}-small"));
        assert_eq!(Manifest::read(&kept).unwrap().about, about.trim(), "{paper}");
        let differs = ["instead of 6e-4", "warms up over 5 %", "with replacement"];
        assert!(paper == "spe" || differs.iter().all(|part| about.contains(part)), "{about}");
    }
}

#[test]
fn mistakes_in_an_experiment_are_named() {
    let text = experiment_file("kerple", "small").unwrap();
    for (from, to, part) in [
        ("corpora = [\"github\"]", "corpora = [\"gitlab\"]", "unknown corpus `gitlab`"),
        ("evaluate = [\"lengths\"]", "evaluate = [\"length\"]", "unknown evaluation `length`"),
        ("variant = \"twice\"\n", "", "must be given together"),
        (
            "variant = \"four_times\"",
            "variant = \"twice\"",
            "variant `twice` of `openwebtext2` is both train.train_len=256",
        ),
        ("seeds = 5", "seed = 5", "unknown field `seed`"),
    ] {
        let error = Experiment::parse(&text.replacen(from, to, 1), "here.toml").unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("here.toml"), "{error}");
    }
    // a claim is about planned runs
    let text = experiment_file("decay", "small").unwrap();
    for (from, to, part) in [
        (
            "treatment = { encoding = \"kerple_log-decayed-layer\"",
            "treatment = { encoding = \"alibi\"",
            "`alibi`, variant `paper_sum`",
        ),
        ("variant = \"paper_sum\" }", "variant = \"sum\" }", "variant `sum`"),
        ("lengths = [8192]", "lengths = [9000]", "are evaluated as `lengths` there"),
        ("from = 256\n", "", "a change needs `from`"),
        ("seeds = 5", "seeds = 2", "fewer than three seeds of"),
    ] {
        let changed = text.replacen(from, to, 1);
        let error = Experiment::parse(&changed, "here.toml").unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("here.toml: claim `"), "{from}: {error}");
    }
    // rows that score other tokens are not compared
    let text = experiment_file("documents", "small").unwrap();
    let of_training = text.replacen("documents = \"separate\"\n", "", 1);
    for changed in [text.replace("evaluation = \"window\" }", "evaluation = \"joined\" }"), of_training] {
        let error = Experiment::parse(&changed, "here.toml").unwrap_err().to_string();
        assert!(error.contains("documents, which score other tokens"), "{error}");
    }
}

/// Two seeds of a small model of four pairs, which are evaluated on two as well.
const FEWER_PAIRS: &str = r#"
title = "Recall of fewer pairs"
about = "A test."
seed = 1
[tasks.model]
n_layers = 1
n_heads = 1
head_dim = 8
[tasks.train]
train_len = 24
batch_size = 4
steps = 2
learning_rate = 1e-3
log_every = 1
eval_interval = 0
save_interval = 2
keep_last_n = 1
[[corpus]]
name = "recall"
title = "Associative recall"
task = { kind = "recall", pairs = 4, vocab = 16 }
[evaluation.answers]
segments = 6
lengths = [24, 48]
[evaluation.fewer]
task = { kind = "recall", pairs = 2, vocab = 16 }
segments = 6
lengths = [24, 48]
[[part]]
serves = ["values"]
encodings = ["alibi"]
seeds = 2
evaluate = ["answers", "fewer"]
"#;

#[test]
fn runs_are_evaluated_on_another_task() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = Experiment::parse(FEWER_PAIRS, "here.toml").unwrap();
    let planned = planned(&experiment, &[]);
    let reproduction = Reproduction {
        paper: "length".to_owned(),
        scale: "smoke".to_owned(),
        experiment,
        data: None,
        out: folder.path().to_owned(),
        only: Vec::new(),
        runtime: Runtime::cpu(None),
        planned,
    };
    reproduction.write_manifest().unwrap();
    for _ in 0..2 {
        // the second time nothing is left to do
        assert!(reproduction.run(Shard::WHOLE, &AtomicBool::new(false), &mut |_| ()).unwrap());
    }
    let manifest = Manifest::read(folder.path()).unwrap();
    for seed in [1, 2] {
        let run = kerple_report::Run::read(&folder.path().join(format!("recall/alibi/seed-{seed}"))).unwrap();
        assert_eq!(run.evaluations.len(), 4);
        let found = |name: &str, length: u64| {
            let is_it = |row: &&kerple_run::EvaluationRow| {
                row.eval_len == length && manifest.evaluations[name].is_of(&run, row)
            };
            let rows: Vec<_> = run.evaluations.iter().filter(is_it).collect();
            assert_eq!(rows.len(), 1, "{name} at {length}");
            rows[0].tokens
        };
        // an answer is one token for each pair
        assert_eq!([found("answers", 24), found("fewer", 24), found("fewer", 48)], [6 * 4, 6 * 2, 6 * 2]);
    }
    crate::pages::write(folder.path(), &[], &[]).unwrap();
    let report = std::fs::read_to_string(folder.path().join("paper/report.md")).unwrap();
    let captions: Vec<&str> = report.lines().filter(|line| line.contains("right answers")).collect();
    assert!(
        captions.iter().any(|line| line.contains("tested on recall with pairs 2, power 0.01, vocab 16")),
        "{captions:?}"
    );
    let verified = crate::verify::verify(folder.path(), folder.path());
    assert!(
        verified.problems.iter().all(|problem| !problem.to_string().contains("another text")),
        "{:?}",
        verified.problems
    );
}

#[test]
fn reaches_of_several_tasks_are_one_figure() {
    let folder = tempfile::tempdir().unwrap();
    let two = FEWER_PAIRS
        .replace(
            "[evaluation.answers]",
            "[[corpus]]\nname = \"flip\"\ntitle = \"Flip-flop\"\ntask = \"flipflop\"\n[evaluation.answers]",
        )
        .replace("evaluate = [\"answers\", \"fewer\"]", "evaluate = [\"answers\"]");
    let experiment = Experiment::parse(&two, "here.toml").unwrap();
    let reproduction = Reproduction {
        paper: "length".to_owned(),
        scale: "smoke".to_owned(),
        planned: planned(&experiment, &[]),
        experiment,
        data: None,
        out: folder.path().to_owned(),
        only: Vec::new(),
        runtime: Runtime::cpu(None),
    };
    reproduction.write_manifest().unwrap();
    assert!(reproduction.run(Shard::WHOLE, &AtomicBool::new(false), &mut |_| ()).unwrap());
    crate::pages::write(folder.path(), &[], &[]).unwrap();
    let figure = std::fs::read_to_string(folder.path().join("paper/figures/reach.svg")).unwrap();
    for part in [">Associative recall<", ">Flip-flop<", ">ALiBi<", "trained at 24"] {
        assert!(figure.contains(part), "{part}: {figure}");
    }
    let page = std::fs::read_to_string(folder.path().join("paper/report.md")).unwrap();
    assert!(page.contains("figures/reach.svg"), "{page}");
}

#[test]
fn a_task_that_runs_cannot_answer_is_refused() {
    for (from, to, part) in [
        ("pairs = 2, vocab = 16", "pairs = 2, vocab = 32", "has the vocabulary 32, that of the run 16"),
        ("kind = \"recall\", pairs = 2, vocab = 16", "kind = \"even_pairs\"", "the task is even_pairs"),
    ] {
        let text = FEWER_PAIRS.replacen(from, to, 1);
        assert_ne!(text, FEWER_PAIRS);
        let error = Experiment::parse(&text, "here.toml").unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains(part) && message.contains("evaluation `fewer`, task, for runs of `recall`"),
            "{message}"
        );
        assert!(error.hint().contains("neither its vocabulary nor its answers"), "{}", error.hint());
    }
    let of_text = FEWER_PAIRS
        .replacen("task = { kind = \"recall\", pairs = 4, vocab = 16 }", "texts = \"web\"\ntokenizer = \"byte\"", 1)
        .replace("tasks.", "");
    let error = Experiment::parse(&of_text, "here.toml").unwrap_err();
    assert!(error.to_string().contains("for runs of `recall`: they learn a text"), "{error}");
    // two tasks are never compared
    let claim = r#"
[[claim]]
text = "alike"
measure = "answers"
evaluation = "answers"
lengths = [24]
treatment = { encoding = "alibi", evaluation = "fewer" }
baseline = { encoding = "alibi" }
bound = { within = 0.01 }
"#;
    let error = Experiment::parse(&format!("{FEWER_PAIRS}{claim}"), "here.toml").unwrap_err().to_string();
    assert!(error.contains("its arms are evaluated on different tasks"), "{error}");
}

#[test]
fn claims_over_lengths_need_lengths_on_both_sides_and_a_task() {
    let claim = |measure: &str, lengths: &str| {
        format!(
            r#"
[[claim]]
text = "alike"
measure = "{measure}"
evaluation = "answers"
lengths = {lengths}
treatment = {{ encoding = "alibi" }}
baseline = {{ encoding = "alibi" }}
bound = {{ within = 0.5 }}
"#
        )
    };
    let three = FEWER_PAIRS.replace("seeds = 2", "seeds = 3");
    let parse = |text: &str, claim: String| Experiment::parse(&format!("{text}{claim}"), "here.toml");
    for measure in ["reach", "beyond"] {
        assert!(parse(&three, claim(measure, "[24, 48]")).is_ok());
        let error = parse(&three, claim(measure, "[48]")).unwrap_err().to_string();
        assert!(error.contains("one up to the training length of `recall`, 24, and one beyond it"), "{error}");
        let error = parse(&three, claim(measure, "[24]")).unwrap_err().to_string();
        assert!(error.contains("and one beyond it"), "{error}");
    }
    assert!(parse(&three, claim("answers", "[48]")).is_ok());
}
