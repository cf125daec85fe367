//! Plans that go out from another one, or from a model of another program.

use super::{DataFacts, ModelPlan, Plan};
use crate::config::{ModelConfig, Preset, RunConfig, TrainConfig};
use crate::error::Result;
use crate::layers::{LayerConfig, LayerKind};
use crate::origin::Origin;

impl Plan {
    /// The same of a run whose first weights are not drawn.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of_origin(config: &RunConfig, facts: DataFacts, origin: Origin) -> Result<Plan> {
        match origin {
            // nothing was read yet
            Origin::Imported { .. } => Plan::resolve(config, facts, Some(origin)),
            Origin::Run { .. } => Ok(Plan { origin: Some(origin), ..Plan::new(config, facts)? }.sealed()),
        }
    }

    pub(super) fn sealed(self) -> Plan {
        Plan { hash: self.digest(), ..self }
    }

    /// A run file that makes this plan again of the same data.
    pub fn config(&self) -> RunConfig {
        let ModelPlan { n_layers, n_heads, head_dim, d_model, d_hidden, vocab_size, readout, .. } = self.model;
        let kind = |(name, kind): (&String, &LayerKind)| {
            let LayerKind { at, encoding, window, attention } = kind.clone();
            (name.clone(), LayerConfig { at: Some(at), every: None, encoding, window, attention })
        };
        let train = TrainConfig {
            // as if they had not been named, so that others may be
            micro_batch: self.train.micro_batch.filter(|rows| *rows != self.train.batch),
            schedule_steps: self.train.schedule_steps.filter(|steps| *steps != self.steps),
            ..self.train.clone()
        };
        RunConfig {
            seed: self.seed,
            data: self.data.clone(),
            encoding: self.encoding.clone(),
            model: ModelConfig {
                preset: Preset::default(),
                n_layers: Some(n_layers),
                n_heads: Some(n_heads),
                head_dim: Some(head_dim),
                d_model: Some(d_model),
                d_hidden: Some(d_hidden),
                pad_vocab_to: None,
                vocab_rows: Some(vocab_size),
                readout,
                block: self.model.block.clone(),
                layers: self.model.layers.iter().map(kind).collect(),
            },
            train,
        }
    }
}
