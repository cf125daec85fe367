//! The settings that GPT-NeoX has: those that change results, and those that do not.

use crate::import::config::is_among;
use serde_json::{Value, json};

/// Settings that change results, and the only values that can be imported; absent and `null` are the engine's defaults.
pub fn only() -> Vec<(&'static str, Vec<Value>)> {
    let no = || vec![json!(false)];
    let none = Vec::new;
    vec![
        ("norm", vec![json!("layernorm")]),
        ("gpt-j-tied", no()),
        ("use-qk-layernorm", no()),
        ("mlp-type", vec![json!("regular")]),
        ("num-experts", vec![json!(1)]),
        ("moe-num-experts", vec![json!(1)]),
        ("use-bias-in-attn-linear", vec![json!(true)]),
        ("use-bias-in-mlp", vec![json!(true)]),
        ("use-bias-in-norms", vec![json!(true)]),
        ("sliding-window-width", none()),
        ("num-kv-heads", none()),
        ("mup", no()),
        ("use-mup", no()),
        ("opt-pos-emb-offset", vec![json!(0)]),
        ("num-unique-layers", none()),
        ("model-arch", vec![json!("gpt2")]),
        ("num-encoder-layers", none()),
        ("decoder-seq-length", none()),
        ("soft-prompt-tuning", vec![json!({}), json!({ "enabled": false })]),
        ("sparse-attention", vec![json!({})]),
        ("rotary-interleaved", no()),
        ("rope-scaling", none()),
        ("dim-att", none()),
        ("head-size", none()),
        ("ffn-dim", none()),
        ("logit-scale", none()),
        ("clip-qkv", none()),
    ]
}

/// Settings that are read elsewhere, or of the training, the machines and the logs: the model that was made does not depend on them.
const HARMLESS: [&str; 8] = [
    // read
    "\
        num-layers hidden-size num-attention-heads seq-length max-position-embeddings \
        layernorm-epsilon pos-emb rpe-num-buckets rpe-max-distance no-weight-tying \
        attention-config activation bias-gelu-fusion rotary-pct rotary-emb-base gpt-j-residual \
        model-parallel-size",
    // of other norms, kinds of attention and encodings, which are refused by themselves
    "\
        rms-norm-epsilon scalenorm-epsilon sparsity-config gmlp-attn-dim expansion-factor moe-* \
        mup-* coord-check",
    // sizes that the tensors have
    "\
        intermediate-size feedforward-size mlp-multiple-of padded-vocab-size \
        make-vocab-size-divisible-by extra-sentinel-tokens vocab-size output-layer-parallelism",
    // how the same numbers are computed
    "\
        precision param-sharing-style scaled-upper-triang-masked-softmax-fusion \
        scaled-masked-softmax-fusion bias-dropout-fusion rope-fusion layernorm-fusion \
        rmsnorm-fusion fp16-lm-cross-entropy apply-query-key-layer-scaling \
        attention-softmax-in-fp32 use-cpu-initialization rotary-save-freqs-buffer \
        use-flashattn-swiglu te-* sequence-parallel context-parallel-size expert-interval \
        is-pipe-parallel pipe-parallel-size pipe-partition-method world-size use-triton \
        load-te-checkpoint",
    // how training began and went
    "\
        init-method init-method-std output-layer-init-method attention-dropout hidden-dropout \
        packing packing-impl loss-on-targets-only masked-lm-prob mean-noise-span-length \
        optimizer optimizer-type use-bnb-optimizer zero-* lr lr-* min-lr warmup \
        override-lr-scheduler use-checkpoint-lr-scheduler scheduler seed short-seq-prob \
        eod-mask-loss reset-position-ids reset-attention-mask weight-decay gas clip-grad \
        hysteresis dynamic-loss-scale loss-scale loss-scale-window min-scale batch-size \
        train-iters train-epochs eval-iters eval-interval iteration do-train do-valid do-test \
        train-impl dpo-* kto-* rm-* reinforce-* z-loss pos-train-data-paths neg-* train-* \
        valid-* test-* checkpoint* deepspeed-activation-checkpointing contiguous-checkpointing \
        synchronize-each-layer partition-activations activation-checkpointing \
        gradient-accumulation-steps gradient-clipping gradient-predivide-factor \
        gradient-noise-scale-* prescale-gradients sparse-gradients fp32-allreduce fp16 bf16 amp \
        bf16-* curriculum-* data-* compression-training",
    // data, files and tokenizers
    "\
        weight-by-num-documents weighted-* mmap-warmup dataset-impl save save-* load no-save-* \
        no-load-* finetune keep-last-n-checkpoints config-files extra-save-iters split \
        vocab-file merge-file tokenizer* char-level-ppl use-shared-fs label-data-paths \
        allow-chopped return-data-index",
    // logs and machines
    "\
        use-wandb wandb* use-tensorboard tensorboard* use-comet comet* git-hash log-* \
        steps-per-print wall-clock-breakdown dump-state flops-profiler profile* \
        memory-profiling* csv-monitor comms-logger autotuning* peak-theoretical-tflops \
        distributed-backend local-rank rank lazy-mpu-init adlr-* onnx-safe deepscale* deepspeed* \
        user-script global-num-gpus num-workers hostfile include exclude num-nodes num-gpus \
        master-port master-addr launcher force-multi detect-nvlink-pairs no-ssh-check comment \
        account exit-* elasticity communication-data-type s3-* hf-* pytorch-* monitor-* \
        heartbeat-* do-eval-during-training",
    // sampling
    "\
        text-gen-type temperature top-p top-k return-logits maximum-tokens prompt-end \
        sample-input-file sample-output-file num-samples recompute eval-results-prefix \
        eval-tasks eval-* return-* inference",
];

/// Whether a setting is known, by its name with dashes.
pub fn is_known(name: &str) -> bool {
    HARMLESS.iter().any(|words| is_among(words, name)) || only().iter().any(|(known, _)| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_results_is_not_said_to_be_harmless() {
        // a family of names may hold one of them, which is refused before
        for (name, _) in only() {
            assert!(HARMLESS.iter().flat_map(|words| words.split_whitespace()).all(|word| word != name), "{name}");
        }
        assert!(is_known("num-layers") && is_known("zero-optimization") && is_known("mup-width-scale"));
        assert!(!is_known("seed-of-data") && !is_known("attention") && !is_known("rotary"));
    }
}
