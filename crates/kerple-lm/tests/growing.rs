//! Sequences that grow side by side, and predictions along a sequence.

mod common;

use common::{IDS, encoding, logits, maps, patterns, plan, plan_with};
use kerple::encoding::Encoding;
use kerple_burn::fused::Engine;
use kerple_burn::plan::{AttentionKind, BlockPlan, LinearPlan, ResidualKind, SinkKind};
use kerple_lm::config::TrainConfig;
use kerple_lm::model::{Decoder, Growing, Tokens};
use kerple_lm::pass::Pass;

fn models() -> Vec<(String, Decoder)> {
    let train = TrainConfig::default;
    let of = |plan: &kerple_lm::plan::Plan| Decoder::new(plan, &kerple_lm::device());
    let kinds = ["none", "learned", "sinusoidal", "rotary", "t5", "kerple_log", "sandwich", "transformer_xl", "cope"];
    let encodings: Vec<Encoding> = kinds.map(encoding).into_iter().chain(maps()).collect();
    let mut found: Vec<(String, Decoder)> =
        encodings.iter().map(|encoding| (encoding.label(), of(&plan(encoding, train())))).collect();
    let blocks = [
        BlockPlan { residual: ResidualKind::Parallel, tied_head: true, ..BlockPlan::default() },
        BlockPlan { residual: ResidualKind::Post, qk_norm: true, gated: true, ..BlockPlan::default() },
        BlockPlan { kv_heads: Some(1), ssmax: Some(0.4), sink: SinkKind::Learned, ..BlockPlan::default() },
        BlockPlan { attention: AttentionKind::Linear(LinearPlan::default()), ..BlockPlan::default() },
    ];
    let with = |block: BlockPlan| (format!("{block:?}"), of(&plan_with(&encoding("kerple_log"), train(), block)));
    found.extend(blocks.map(with));
    found.extend(patterns(&train()).into_iter().map(|(what, plan)| (what.to_owned(), of(&plan))));
    found
}

/// What the model says after tokens that came one by one.
fn alone(model: &Decoder, first: &[u32], then: &[u32]) -> Vec<Vec<f32>> {
    let mut growing = model.begin(0, IDS.len());
    model.grow(first, &mut growing);
    then.iter().map(|id| model.grow(&[*id], &mut growing)).collect()
}

#[test]
fn side_by_side_equals_alone() {
    for (what, model) in models() {
        // three sequences of other lengths and other tokens
        let firsts = [&IDS[..3], &IDS[1..8], &IDS[5..6]];
        let then = [[7, 2, 9], [1, 1, 22], [0, 13, 4]];
        let mut growing: Vec<Growing> = firsts.iter().map(|_| model.begin(0, IDS.len())).collect();
        firsts.iter().zip(&mut growing).for_each(|(first, one)| {
            model.grow(first, one);
        });
        for step in 0..3 {
            let ids = then.map(|ids| ids[step]);
            let together = model.grow_each(&ids, &mut growing.iter_mut().collect::<Vec<_>>());
            for ((first, then), together) in firsts.iter().zip(&then).zip(together) {
                let alone = &alone(&model, first, then)[step];
                let error = alone.iter().zip(&together).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                // the same sums, which a product of more rows may add in another order, in f32
                assert!(error < 1e-5, "{what}, step {step}: {error}");
            }
        }
        assert_eq!(growing.iter().map(Growing::len).collect::<Vec<_>>(), [6, 10, 4]);
    }
}

#[test]
fn predictions_are_those_of_all_logits() {
    for (what, model) in models() {
        for (keep, engine) in [(false, Engine::Fused), (true, Engine::Fused), (true, Engine::Composed)] {
            let model = model.clone().with_engine(engine);
            let mut growing = model.begin(0, IDS.len());
            let (found, last) = model.read(&IDS, 2, &mut growing, keep);
            let whole = logits(&model, &IDS);
            let vocab = whole.len() / IDS.len();
            assert_eq!((found.target_nll.len(), found.ids.len(), found.nll.len()), (11, 22, 22), "{what}");
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{what}, {keep}: {a} {b}");
            for (at, logits) in whole.chunks(vocab).enumerate().take(11) {
                let of = |id: u32| f64::from(logits[id as usize]);
                let sum = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
                close(found.target_nll[at], sum - of(IDS[at + 1]));
                let best = logits.iter().copied().fold(f32::MIN, f32::max);
                close(found.nll[2 * at], sum - f64::from(best));
                close(found.nll[2 * at + 1], sum - of(found.ids[2 * at + 1]));
                assert!(found.nll[2 * at] <= found.nll[2 * at + 1], "{what}");
            }
            last.iter().zip(&whole[11 * vocab..]).for_each(|(a, b)| close(f64::from(*a), f64::from(*b)));
            let kept = if keep || !growing.is_empty() { IDS.len() } else { 0 };
            assert_eq!(growing.len(), kept, "{what}");
        }
    }
}

#[test]
fn losses_have_the_bits_of_evaluation() {
    for (what, model) in models() {
        let mut growing = model.begin(0, 12);
        let (found, _) = model.read(&IDS, 1, &mut growing, false);
        let (tokens, targets) = (Tokens { ids: &IDS, batch: 1, len: 12 }, [&IDS[1..], &[0]].concat());
        let scored = &model.scored(tokens, &targets, &Pass::evaluation(0))[..11];
        if growing.is_empty() {
            assert_eq!(found.target_nll, scored, "{what}");
        } else {
            // linear layers take it through their memory
            found.target_nll.iter().zip(scored).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{what}: {a} {b}"));
        }
        let one = model.read(&IDS[..1], 3, &mut model.begin(0, 1), false);
        assert!(one.0.ids.is_empty() && one.1.len() == 24, "nothing predicts the first token");
    }
}
