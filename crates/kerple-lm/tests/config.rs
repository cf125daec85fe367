//! Run files: every shipped one plans, every key counts, every mistake is named.

use kerple_core::precision::Precision;
use kerple_data::tasks::TaskConfig;
use kerple_lm::config::{REFERENCE, RunConfig, TrainConfig};
use kerple_lm::memory_estimate::MemoryLimit;
use kerple_lm::plan::{DataInfo, Plan};
use kerple_lm::renamed::{self, RenamedKey};
use kerple_lm::run::RunFolder;
use serde_json::{Value, json};
use std::path::Path;

fn facts() -> DataInfo {
    DataInfo { vocab_size: 256, tokenizer: "byte".to_owned(), train_tokens: 1 << 30, content: "text".to_owned() }
}

fn plan(overrides: &[&str]) -> Result<Plan, kerple_lm::Error> {
    // a later one replaces an earlier one, and a task the text of the reference
    let key = |text: &str| text.split('=').next().unwrap().to_owned();
    let is_replaced = |at: usize| {
        let inner = key(overrides[at]);
        overrides[at + 1..].iter().any(|later| inner == key(later) || inner.starts_with(&format!("{}.", key(later))))
    };
    let kept = (0..overrides.len()).filter(|at| !is_replaced(*at)).map(|at| overrides[at].to_owned());
    let mut overrides: Vec<String> = kept.collect();
    if overrides.iter().any(|text| key(text) == "data.task") && overrides.iter().all(|text| key(text) != "data.path") {
        overrides.push("data.path=".to_owned());
    }
    Plan::new(&RunConfig::parse(REFERENCE, "reference.toml", &overrides)?, facts())
}

#[test]
fn shipped_run_files_plan() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let mut count = 0;
    let files = |folder: String| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all = files(folder.to_owned()).chain(files(format!("{folder}/lra")));
    for file in all.filter(|path| path.is_file()) {
        let config = RunConfig::read(&file, &[]).unwrap();
        Plan::new(&config, facts()).unwrap();
        count += 1;
    }
    assert!(count >= 8, "{count} run files");
}

#[test]
fn the_reference_shows_the_defaults() {
    let config = RunConfig::parse(REFERENCE, "reference.toml", &[]).unwrap();
    assert_eq!(config.train, TrainConfig::default());
    let bare = "[data]\npath = \"data/prepared\"\n[encoding]\nkind = \"kerple_log\"";
    assert_eq!(RunConfig::parse(bare, "bare.toml", &[]).unwrap(), config);
}

#[test]
fn every_key_changes_the_plan() {
    let plain = plan(&[]).unwrap();
    for key in [
        "seed=1",
        "data.sampling=megatron",
        "data.documents=separate",
        "data.task=even_pairs",
        "encoding.kind=alibi",
        "encoding.window=64",
        "encoding.scale=inside",
        "encoding.emulate=bf16",
        "encoding.clamp=forward_only",
        "encoding.share=layer",
        "encoding.randomized=2048",
        "encoding.decayed=true",
        "encoding.reach=64",
        "model.preset=small",
        "model.n_layers=3",
        "model.n_heads=5",
        "model.head_dim=16",
        "model.d_hidden=100",
        "model.pad_vocab_multiple=100",
        "model.d_model=64",
        "model.block.norm=rms",
        "model.block.norm=layer_no_bias",
        "model.block.norm_eps=1e-6",
        "model.block.embedding_norm=true",
        "model.block.residual=parallel",
        "model.block.residual=norm_residual",
        "model.block.qkv_bias=false",
        "model.block.out_bias=false",
        "model.block.mlp_bias=false",
        "model.block.n_kv_heads=2",
        "model.block.activation=silu",
        "model.block.glu=true",
        "model.block.attn_scale=1.0",
        "model.block.scale_attn_by_layer=true",
        "model.block.clip_qkv=8.0",
        "model.block.qk_norm=true",
        "model.block.key_shift=true",
        "model.block.short_conv=4",
        "model.block.ssmax=0.2",
        "model.block.attn_temperature={ floor = 64.0, alpha = 0.2 }",
        "model.block.sink=off_by_one",
        "model.block.sink=learned",
        "model.block.normalizer=stick_breaking",
        "model.block.normalizer={ kind = \"stick_breaking\", attend_current = true }",
        "model.block.normalizer={ kind = \"stick_breaking\", remainder = false }",
        "model.block.normalizer=softpick",
        "model.block.selective_attention=exclusive",
        "model.block.selective_attention=inclusive",
        "model.block.attn_softcap=50.0",
        "model.padded_vocab_size=300",
        "model.block.tie_embeddings=true",
        "model.block.lm_head_bias=true",
        "model.block.residual=post_ln",
        "model.block.scale_embeddings=true",
        "model.block.init=fan_in",
        "model.block.init=xavier",
        "model.block.init=small_wang",
        "model.block.init=small_normal",
        "model.block.dropout=0.1",
        "model.block.embedding_dropout=before",
        "model.block.hidden_dropout=true",
        "model.layers.a={ every = 2, window = 9 }",
        "model.layers.a={ at = [0], encoding = \"none\" }",
        "model.layers.a={ at = [0], attention = { linear = {} } }",
        "model.layers.a={ at = [0], n_heads = 2, encoding = \"alibi\" }",
        "model.layers.a={ at = [0], head_dim = 2, encoding = \"alibi\" }",
        "model.layers.a={ at = [0], n_kv_heads = 2 }",
        "model.layers.a={ at = [0], attn_scale = 0.5 }",
        "train.lr_schedule=inverse_root",
        "train.lr_schedule=cosine_restarts",
        "train.train_len=64",
        "train.batch_size=16",
        "train.steps=100",
        "train.schedule_steps=100",
        "train.learning_rate=0.5",
        "train.min_lr=1e-5",
        "train.warmup_ratio=0.1",
        "train.lr_schedule=linear",
        "train.adam_betas=[0.9, 0.99]",
        "train.adam_eps=1e-6",
        "train.weight_decay=0.1",
        "train.grad_clip=0.5",
        "train.adam_first_step=2",
    ] {
        let changed = plan(&[key]).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_ne!(changed.hash, plain.hash, "{key}");
    }
    let of_padded = |keys: &[&str]| plan(&[&["model.padded_vocab_size=300"], keys].concat()).unwrap().hash;
    assert_ne!(of_padded(&["model.unpadded_vocab_size=290"]), of_padded(&[]));
    let of_restarts = |keys: &[&str]| plan(&[&["train.lr_schedule=cosine_restarts"], keys].concat()).unwrap().hash;
    assert_ne!(of_restarts(&["train.lr_cycle_steps=7"]), of_restarts(&[]));
    // where the data lies, how often things are saved and how many sequences are in memory does not make another run
    for key in [
        "data.path=elsewhere",
        "train.micro_batch_size=8",
        "train.log_every=7",
        "train.eval_interval=7",
        "train.eval_sequences=7",
        "train.save_interval=7",
        "train.keep_last_n=7",
    ] {
        let changed = plan(&[key]).unwrap();
        assert_eq!(changed.hash, plain.hash, "{key}");
        assert_ne!(changed, plain, "{key}");
    }
}

#[test]
fn archived_plans_are_genuine() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    let aside = tempfile::tempdir().unwrap();
    for name in ["kerple-small", "dape-small", "spe-small"] {
        let packed = std::fs::File::open(results.join(name).join("runs.tar.zst")).unwrap();
        tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(aside.path().join(name)).unwrap();
    }
    let (mut folders, mut found) = (vec![aside.path().to_owned()], 0);
    while let Some(folder) = folders.pop() {
        if let Some(plan) = RunFolder::new(&folder).plan().unwrap() {
            let text = std::fs::read_to_string(folder.join("plan.json")).unwrap();
            assert!(text.contains(&plan.hash) && plan.verified().is_some(), "{}", folder.display());
            found += 1;
            continue;
        }
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(entries.filter(|path| path.is_dir()));
    }
    assert!(found >= 500, "{found} plans");
    // a changed value is found, and the micro-batch is none
    let plan = plan(&["train.batch_size=8", "train.micro_batch_size=2"]).unwrap();
    let with = |train: TrainConfig| Plan { train, ..plan.clone() };
    let four = with(TrainConfig { micro_batch_size: Some(4), ..plan.train.clone() });
    assert!(four.trajectory_hash() == plan.trajectory_hash() && four.verified().is_some());
    for change in
        [TrainConfig { grad_clip: 0.5, ..plan.train.clone() }, TrainConfig { batch_size: 16, ..plan.train.clone() }]
    {
        let other = with(change);
        assert!(other.trajectory_hash() != plan.trajectory_hash() && other.verified().is_none());
    }
}

#[test]
fn what_decides_an_update_is_the_trajectory() {
    let trajectory = |keys: &[&str]| plan(keys).unwrap().trajectory_hash();
    let steps = ["train.steps=100", "train.schedule_steps=50"];
    assert_eq!(trajectory(&steps), trajectory(&["train.steps=200", "train.schedule_steps=50"]));
    assert_ne!(trajectory(&steps), trajectory(&["train.steps=100"]));
    assert_ne!(trajectory(&steps), trajectory(&["train.steps=100", "train.schedule_steps=50", "seed=1"]));
    let megatron = |steps| trajectory(&[steps, "train.schedule_steps=50", "data.sampling=megatron"]);
    assert_ne!(megatron("train.steps=100"), megatron("train.steps=200"), "its order is made for so many updates");
}

#[test]
fn more_memory_than_there_is_is_refused_with_the_number_to_change() {
    let limit = |bytes| Some(MemoryLimit { name: "the machine's memory", bytes });
    let paper = plan(&["model.preset=neox-162m", "train.batch_size=32"]).unwrap();
    assert!(paper.check_training_memory(None, Precision::F32).is_ok(), "what cannot be read refuses nothing");
    assert!(paper.check_training_memory(limit(1 << 40).as_ref(), Precision::F32).is_ok());
    let small = limit(8 << 30);
    let error = paper.check_training_memory(small.as_ref(), Precision::F32).unwrap_err();
    assert!(error.to_string().contains("the machine's memory is 8.0 GiB") && error.is_misuse(), "{error}");
    // the number of the hint fits, the next larger one does not
    let hint = error.hint();
    let rows: usize = hint.split_once("train.micro_batch_size=").unwrap().1.split_once(';').unwrap().0.parse().unwrap();
    let with = |rows: usize| {
        let set = format!("train.micro_batch_size={rows}");
        plan(&["model.preset=neox-162m", "train.batch_size=32", &set])
            .unwrap()
            .check_training_memory(small.as_ref(), Precision::F32)
    };
    assert!(with(rows).is_ok() && with(2 * rows).is_err(), "{hint}");
    let error = paper.check_training_memory(limit(1 << 20).as_ref(), Precision::F32).unwrap_err();
    assert!(error.hint().contains("smaller"), "{}", error.hint());
    assert!(paper.check_evaluation_memory(usize::MAX, small.as_ref()).is_err(), "no product wraps");
    assert!(paper.check_evaluation_memory(16_384, small.as_ref()).is_ok());
}

#[test]
fn the_estimate_counts_what_positions_and_examples_take() {
    const MIB: u64 = 1 << 20;
    let linear = "model.block.attention={ linear = { feature_map = \"favor\", n_features = 64 } }";
    let of = |set: &[&str]| {
        let plan = plan(&[&["train.batch_size=1", "train.eval_interval=0"][..], set].concat()).unwrap();
        plan.training_memory(1, Precision::F32).positions
    };
    let small = of(&["encoding.kind=kerple_log"]);
    assert!(small < MIB, "{small}");
    // 4 heads of as many biases and slopes in two parameters
    let drawn = of(&["encoding.kind=kerple_log", "encoding.randomized=1000000"]);
    assert!(drawn > 4 * 1_000_000 * 8 * 4 - MIB && drawn < 256 * MIB, "{drawn}");
    // as many realisations: the images of 512 queries and keys in 4 heads, noise of 10 waves, a projection of blocks
    let code = |keys: &str| of(&[linear, &format!("encoding={{ kind = \"sine_spe\", {keys} }}")]);
    assert!(code("num_realizations = 64") < 16 * MIB);
    assert!(code("num_realizations = 4096") > 4 * 512 * 4 * 4096 * 4, "{}", code("num_realizations = 4096"));
    assert!(code("num_realizations = 64, num_sines = 4096") > 2 * 4096 * 64 * 128 * 4);
    let taps = of(&[linear, "encoding={ kind = \"conv_spe\", num_realizations = 2048, kernel_size = [1024] }"]);
    assert!(taps > 1024 * 2048 * 12, "{taps}");
    // a state a piece, up to 64 of them in a stretch
    let pieces = |len: &str| of(&[linear, "encoding.kind=kerple_log", "train.chunk_len=1024", len]);
    let [few, many, more] = ["train.train_len=1024", "train.train_len=65536", "train.train_len=4194304"].map(pieces);
    assert!(few + 64 * MIB < many && many < more && more < 3 * many, "{few} {many} {more}");
    // a task is answered on whole sequences, a text is read in pieces
    let limit = MemoryLimit { name: "the machine's memory", bytes: 64 << 30 };
    let text = plan(&[linear, "encoding.kind=rotary"]).unwrap();
    assert!(text.check_evaluation_memory(1 << 24, Some(&limit)).is_ok());
    assert!(text.check_evaluation_memory(1 << 40, Some(&limit)).is_err(), "40 bytes a token");
    let mut task = text.clone();
    task.data.task = TaskConfig::named("even_pairs");
    let error = task.check_evaluation_memory(1 << 27, Some(&limit)).unwrap_err();
    assert!(error.to_string().contains("examples 3.5 GiB"), "{error}");
}

#[test]
fn positions_that_end_before_the_sequence_are_refused() {
    let error = plan(&["encoding.kind=learned", "encoding.positions=64"]).unwrap_err();
    let says = "encoding.positions: 64 rows are too few for training sequences of 512 tokens";
    assert!(error.to_string().contains(says) && !error.hint().is_empty(), "{error}");
    let error = plan(&["encoding.kind=rotary", "encoding.pct=0.01"]).unwrap_err();
    assert!(error.to_string().contains("encoding.pct: 0.01 of 32 features"), "{error}");
}

#[test]
fn mistakes_are_named() {
    for (key, says) in [
        ("train.stepz=3", "stepz"),
        ("train.steps=many", "many"),
        ("train.steps=-1", "-1"),
        ("train.warmup_ratio=0.9", "0.9"),
        ("train.adam_betas=[0.9, 1.0]", "adam_betas[1]"),
        ("train.micro_batch_size=5", "divide"),
        ("train.batch_size=0", "batch_size"),
        ("train.grad_clip=inf", "train.grad_clip"),
        ("train.grad_clip=nan", "train.grad_clip"),
        ("train.weight_decay=inf", "train.weight_decay"),
        ("train.weight_decay=1e300", "train.weight_decay"),
        ("train.weight_decay=2000", "train.learning_rate * train.weight_decay"),
        ("train.schedule_steps=1000000000001", "train.schedule_steps"),
        ("seed=9223372036854775808", "seed"),
        ("model.n_layers=65536", "16384"),
        ("encoding.kind=kerple_lag", "kerple_lag"),
        ("encoding.r9=1", "r9"),
        ("encoding.window=nan", "`window`: NaN is not a finite number"),
        ("encoding.window=-inf", "`window`: -inf is not a finite number"),
        ("encoding.r1=[2.0, 0.0]", "`r1`: [2, 0] is not a range"),
        ("encoding.r1=\"high\"", "`r1`: an initial value must be a number"),
        ("model.preset=huge", "huge"),
        ("model.n_heads=0", "n_heads"),
        ("model.d_model=0", "model.d_model"),
        ("model.block.n_kv_heads=3", "divide"),
        ("model.block.n_kv_heads=0", "divide"),
        ("model.block.norm_eps=nan", "norm_eps"),
        ("model.block.dropout=1.0", "dropout"),
        ("model.block.init=zero", "zero"),
        ("model.block.selective_attention=past", "unknown variant `past`, expected `exclusive` or `inclusive`"),
        ("model.block.normalizer=sparsemax", "unknown normalizer `sparsemax`, expected one of `softmax`"),
        ("model.block.normalizer={ kind = \"softpick\", remainder = true }", "unknown field `remainder`"),
        ("model.block.normalizer={ remainder = true }", "expected a name or a table with `kind`"),
        ("model.block.clip_qkv=0.0", "clip_qkv"),
        ("model.block.attn_scale=inf", "attn_scale"),
        ("model.pooling=cls", "model.pooling"),
        ("train.lr_cycle_steps=0", "train.lr_cycle_steps"),
        ("model.block.norm=group", "group"),
        ("model.block.activation=mish", "mish"),
        ("model.block.bias=true", "bias"),
        ("nonsense", "="),
        ("=3", "empty"),
        ("seed.x=3", "seed"),
        ("train.train_len=2000000000", "train_len"),
    ] {
        let error = plan(&[key]).expect_err(key);
        assert!(error.to_string().contains(says) && !error.hint().is_empty(), "{key}: {error}");
    }
}

#[test]
fn a_default_block_leaves_plans_and_hashes_as_they_were() {
    let plain = plan(&[]).unwrap();
    assert!(plain.model.block.is_default());
    let text = serde_json::to_string(&plain).unwrap();
    assert!(!text.contains("block"), "{text}");
    let read: Plan = serde_json::from_str(&text).unwrap();
    assert!(read == plain && read.clone().verified() == Some(read));
    let changed = plan(&["model.block.glu=true"]).unwrap();
    let read: Plan = serde_json::from_str(&serde_json::to_string(&changed).unwrap()).unwrap();
    assert!(read == changed && read.model.block.glu && read.clone().verified() == Some(read));
}

#[test]
fn models_of_the_arena_have_the_published_sizes() {
    let read = |task: &str, set: &[&str]| {
        let file = format!("{}/../../configs/lra/{task}.toml", env!("CARGO_MANIFEST_DIR"));
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let config = RunConfig::read(file.as_ref(), &set).unwrap();
        let facts = kerple_lm::tasks::facts(config.data.task.as_ref().unwrap().facts());
        Plan::new(&config, facts).unwrap()
    };
    let absolute = |task| read(task, &["encoding={ kind = \"sinusoidal\" }"]);
    // embeddings, blocks of 4 M^2 and a feed-forward branch with two norms, the last norm, the token in front, the head
    let expected = |vocab: usize, [layers, m, inner, f]: [usize; 4], head: usize| {
        let block = 4 * m * inner + (2 * m * f + m + f) + 4 * m;
        vocab * m + layers * block + 2 * m + m + head
    };
    let dense = |a: usize, b: usize| (a + 1) * b;
    let list_ops = absolute("listops");
    let head = dense(512, 2048) + dense(2048, 10);
    assert_eq!(list_ops.parameters, expected(16, [6, 512, 512, 2048], head));
    assert_eq!((list_ops.steps, list_ops.schedule().at(1000)), (10_000, 0.0125 / 1000f64.sqrt()));
    let text = absolute("text");
    assert_eq!(text.parameters, expected(257, [4, 256, 256, 1024], dense(256, 1024) + dense(1024, 2)));
    assert_eq!(text.schedule().at(8000), 0.0125 / 8000f64.sqrt());
    let retrieval = absolute("retrieval");
    let head = dense(256, 512) + dense(512, 256) + dense(256, 2);
    assert_eq!(retrieval.parameters, expected(258, [4, 128, 128, 512], head));
    assert_eq!(retrieval.sequence_len(), 4001, "each text by itself");
    let codes = read("image", &[]);
    let learned = 3 * 64 * 10 + 64; // waves and a gate in the one layer
    let image = expected(256, [1, 128, 64, 128], dense(128, 128) + dense(128, 10));
    assert_eq!(codes.parameters, image + learned);
    assert_eq!(read("image", &["encoding={ kind = \"learned\" }"]).parameters, image + 1025 * 128);
    assert_eq!((codes.schedule().at(468), codes.schedule().at(468 + 35_000)), (2.5e-4, 2.5e-4));
}

#[test]
fn what_gpus_have_no_kernel_for_is_named() {
    let composed = |overrides: &[&str]| {
        let plan = plan(overrides).unwrap();
        plan.model.without_gpu_kernel(&plan.encoding, plan.data.task.as_ref()).join(", ")
    };
    for with_kernels in ["kerple_log", "alibi", "t5", "rotary", "sinusoidal", "none", "fire"] {
        assert_eq!(composed(&[&format!("encoding.kind={with_kernels}")]), "", "{with_kernels}");
    }
    assert_eq!(composed(&["encoding.kind=cope"]), "the score map of cope-shared");
    assert_eq!(composed(&["encoding.kind=fox"]), "");
    assert_eq!(composed(&["encoding.kind=fox", "data.task=even_pairs"]), "the gates of fox-shared");
    assert_eq!(composed(&["encoding.kind=xpos"]), "the decaying products of xpos");
    let first = "encoding={ kind = \"alibi\", window = 9, sink_tokens = 4 }";
    assert_eq!(composed(&[first]), "the first tokens of alibi-window9-sink_tokens4");
    let refused = plan(&[first, "data.task=even_pairs"]).unwrap_err().to_string();
    assert!(refused.contains("encoding.sink_tokens: the window of an encoder does not support"), "{refused}");
    assert_eq!(composed(&["model.block.attn_softcap=30", "model.block.sink=learned"]), "");
    assert_eq!(composed(&["model.block.normalizer=softpick"]), "the normalizer softpick");
    assert_eq!(composed(&["model.block.selective_attention=exclusive"]), "selective attention");
    let linear = "model.block.attention={ linear = { feature_map = \"elu\" } }";
    let exact = "model.layers.exact={ at = [1], encoding = \"cope\", attention = \"softmax\" }";
    assert_eq!(composed(&[linear, exact]), "the score map of cope");
    assert_eq!(composed(&[linear, "encoding.kind=fox"]), "");
    assert_eq!(composed(&[linear, "data.task=even_pairs"]), "");
    let wide = "model.block.attention={ linear = { n_features = 512 } }";
    assert_eq!(composed(&[wide]), "");
}

/// What `--set` changes to have a key of a table with this value.
fn assignment(table: &str, key: &str, value: &str) -> String {
    match table {
        kind if kerple_core::encoding::METHODS.contains(&kind) => {
            format!("encoding={{ kind = \"{kind}\", {key} = {value} }}")
        }
        table => format!("{table}.{key}={value}"),
    }
}

fn bare(assignment: &str) -> Result<RunConfig, kerple_lm::Error> {
    let text = "data.path = \"nowhere\"\nencoding.kind = \"kerple_log\"";
    RunConfig::parse(text, "bare.toml", &[assignment.to_owned()])
}

#[test]
fn keys_that_were_renamed_are_refused_with_their_new_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for renamed in renamed::all() {
        let RenamedKey { table, key, value, new } = renamed;
        let error = match table {
            renamed::PLAN_FILE => {
                let run = RunFolder::new(folder.path());
                run.write_plan(&plan(&[]).unwrap()).unwrap();
                let path = folder.path().join(table);
                let mut content: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
                content[key] = content[new].take();
                std::fs::write(&path, content.to_string()).unwrap();
                run.plan().unwrap_err()
            }
            renamed::STATE_FILE => {
                std::fs::write(folder.path().join(table), json!({ key: "abc" }).to_string()).unwrap();
                kerple_lm::checkpoint::state(folder.path(), &plan(&[]).unwrap()).unwrap_err()
            }
            _ => {
                let old = value.map_or_else(|| "1".to_owned(), |value| format!("\"{value}\""));
                let error = bare(&assignment(table, key, &old)).unwrap_err();
                assert!(error.is_misuse(), "{renamed}");
                // the new name is one, whatever the value is refused for
                let set = if value.is_some() { (key, format!("\"{new}\"")) } else { (new, old) };
                let now = bare(&assignment(table, set.0, &set.1)).err().map(|error| error.to_string() + &error.hint());
                assert!(!now.is_some_and(|now| now.contains("unknown") || now.contains("is now")), "{renamed}");
                error
            }
        };
        assert_eq!(error.hint(), renamed.to_string(), "{error}");
        count += 1;
    }
    assert!(count > 50, "{count} names");
}

#[test]
fn every_renamed_key_of_a_file_is_in_the_hint() {
    let text = "data = { path = \"nowhere\", packing = \"megatron\" }\nencoding = { kind = \"dape\", base = { kind = \"fire\", \
                threshold = 9 } }\n[model.layers.a]\nevery = 2\nencoding = { kind = \"conv_spe\", taps = [4] }\nattention = { \
                linear = { count = 8 } }\n[model.block]\nresidual = \"post\"\n[train]\nbatch = 4\nwarmup = 0.1\n";
    let error = RunConfig::parse(text, "old.toml", &[]).unwrap_err();
    let hint = "`packing` is now `sampling`, `batch` is now `batch_size`, `warmup` is now `warmup_ratio`, \
                `residual = \"post\"` is now `residual = \"post_ln\"`, `count` is now `n_features`, \
                `threshold` is now `init_l`, `taps` is now `kernel_size`";
    assert!(error.to_string().contains("old.toml") && error.hint() == hint, "{error}: {}", error.hint());
}

/// Each refusal names its key, and the plan is accepted once its hint is followed.
#[test]
fn normalizers_refuse_what_they_do_not_support() {
    let stick = "model.block.normalizer=stick_breaking";
    for (overrides, key, says, fixes) in [
        (
            &[stick, "model.block.sink=learned"][..],
            "model.block.sink",
            "does not support an attention sink",
            &[&["model.block.sink=none"][..], &["model.block.normalizer=softmax"]][..],
        ),
        (
            &["model.block.normalizer=softpick", "model.block.sink=off_by_one"],
            "model.block.sink",
            "`softpick` does not support an attention sink",
            &[&["model.block.sink=none"]],
        ),
        (
            &[stick, "encoding.kind=cope"],
            "model.block.normalizer",
            "does not support cope-shared: its scores depend on other keys or heads",
            &[&["model.block.normalizer=softmax"], &["encoding.kind=kerple_log"]],
        ),
        (
            &[stick, "encoding.kind=fire"],
            "model.block.normalizer",
            "does not support fire",
            &[&["encoding.kind=kerple_log"]],
        ),
        (
            &[stick, "encoding.kind=dape"],
            "model.block.normalizer",
            "does not support dape",
            &[&["encoding.kind=kerple_log"]],
        ),
        (
            &[stick, "encoding.kind=grape_ap"],
            "model.block.normalizer",
            "does not support grape_ap",
            &[&["encoding.kind=kerple_log"]],
        ),
        (
            &[stick, "encoding.kind=path"],
            "model.block.normalizer",
            "does not support path",
            &[&["encoding.kind=kerple_log"]],
        ),
        (
            &[stick, "data.task=even_pairs"],
            "model.block.normalizer",
            "defined for causal attention only, but an encoder attends in both directions",
            &[&["model.block.normalizer=softmax"], &["model.block.normalizer=softpick"]],
        ),
        (
            &[stick, "encoding.kind=none", "model.block.attention={ linear = { feature_map = \"elu\" } }"],
            "model.block.normalizer",
            "linear attention does not support this key",
            &[&["model.block.normalizer=softmax"]],
        ),
        (
            &[stick, "model.layers.a={ at = [0], encoding = \"cope\" }"],
            "model.block.normalizer",
            "does not support cope",
            &[&["model.block.normalizer=softmax"]],
        ),
    ] {
        let refused = plan(overrides).expect_err(says).to_string();
        assert!(refused.contains(&format!("{key}: ")) && refused.contains(says), "{refused}");
        for fix in fixes {
            plan(&[overrides, fix].concat()).unwrap_or_else(|error| panic!("{overrides:?} {fix:?}: {error}"));
        }
    }
    for encoding in
        ["kerple_log", "kerple_positions", "fox", "rotary", "xpos", "wall", "inkling", "selective_rope", "t5"]
    {
        for normalizer in ["stick_breaking", "softpick"] {
            let keys = [format!("encoding.kind={encoding}"), format!("model.block.normalizer={normalizer}")];
            plan(&keys.each_ref().map(String::as_str)).unwrap_or_else(|error| panic!("{keys:?}: {error}"));
        }
    }
}

/// Each refusal names its key, and the plan is accepted once its hint is followed.
#[test]
fn selective_attention_refuses_what_it_does_not_support() {
    let selective = "model.block.selective_attention=exclusive";
    let window = "encoding={ kind = \"alibi\", window = 9, sink_tokens = 4 }";
    for (others, says, fix) in [
        (
            &["model.block.normalizer=softpick"][..],
            "keys of the softmax, not of `softpick`",
            "model.block.normalizer=softmax",
        ),
        (&["data.task=even_pairs"], "an encoder attends in both directions", "data.task=passkey"),
        (&[window], "does not support first tokens that stay visible", "encoding={ kind = \"alibi\", window = 9 }"),
        (
            &["encoding.kind=none", "model.block.attention={ linear = { feature_map = \"elu\" } }"],
            "linear attention does not support this key",
            "model.block.attention=softmax",
        ),
        (&["model.layers.a={ at = [0], encoding = \"fox\" }"], "does not support fox", "model.layers.a.encoding=alibi"),
    ] {
        let overrides = [&[selective], others].concat();
        let refused = plan(&overrides).expect_err(says).to_string();
        assert!(refused.contains("model.block.selective_attention: ") && refused.contains(says), "{refused}");
        plan(&[&overrides[..], &[fix]].concat()).unwrap_or_else(|error| panic!("{overrides:?} {fix}: {error}"));
    }
    for kind in ["xpos", "wall", "fox", "kerple_positions", "inkling", "grape_ap", "path", "pope"] {
        let refused = plan(&[selective, &format!("encoding.kind={kind}")]).expect_err(kind).to_string();
        assert!(refused.contains("model.block.selective_attention: selective attention does not support"), "{refused}");
    }
    for kind in ["none", "learned", "sinusoidal", "rotary", "alibi", "t5", "kerple_log", "fire", "dape", "cope", "fope"]
    {
        plan(&[selective, &format!("encoding.kind={kind}")]).unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

/// Far keys at positions of groups are for evaluation, and for softmax attention of decoders.
#[test]
fn self_extend_is_for_the_evaluation_of_trained_models() {
    let scaling = "{ kind = \"self_extend\", group_size = 4, neighbor_window = 8 }";
    for (overrides, says) in [
        (
            vec!["encoding.kind=rotary".to_owned(), format!("encoding.scaling={scaling}")],
            "encoding.scaling: self_extend.group_size4.neighbor_window8 is for the evaluation of trained models only",
        ),
        (
            vec![format!("model.layers.a={{ at = [0], encoding = {{ kind = \"rotary\", scaling = {scaling} }} }}")],
            "model.layers.a.encoding.scaling: self_extend.group_size4.neighbor_window8 is for the evaluation",
        ),
    ] {
        let refused = plan(&overrides.iter().map(String::as_str).collect::<Vec<_>>()).expect_err(says).to_string();
        assert!(refused.contains(says), "{refused}");
    }
    let scaling: kerple_core::encoding::scaling::RopeScaling =
        serde_json::from_value(serde_json::json!("self_extend")).unwrap();
    for (key, says) in [
        ("model.block.normalizer=softpick", "does not support the normalizer softpick"),
        ("model.block.selective_attention=exclusive", "does not support selective attention"),
        ("model.block.attention={ linear = { feature_map = \"elu\" } }", "does not support linear attention"),
        ("encoding={ kind = \"rotary\", window = 9, sink_tokens = 2 }", "does not support first tokens"),
        ("data.task=even_pairs", "does not support an encoder"),
    ] {
        let plan = plan(&["encoding.kind=rotary", key]).unwrap_or_else(|error| panic!("{key}: {error}"));
        let refused =
            plan.check_evaluated(&plan.encoding.with_rope_scaling(scaling).unwrap()).expect_err(key).to_string();
        assert!(refused.contains(says), "{refused}");
    }
}
