//! Runs that begin with the weights of another run, and have other positions, another length or other data.
//!
//! What has the same name and as many values is taken over. Of encodings only those of the same kind keep what they have learned;
//! others begin as they do in a fresh run. Everything else of the model must be as it was.

use crate::checkpoint::{self, Found, State};
use crate::config::{DataConfig, RunConfig};
use crate::corpus::Source;
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::origin::Origin;
use crate::plan::{DataFacts, Plan};
use crate::run::{Beginning, RunFolder};
use crate::tensors::{self, Slot, TensorFile};
use kerple::encoding::scaling::Scaling;
use kerple_burn::parameters::{self, Named};
use std::path::Path;

/// A run that others begin with.
#[derive(Debug)]
pub struct Departure {
    run: RunFolder,
    plan: Plan,
    state: State,
    weights: TensorFile,
    /// What was odd, for the user: damaged checkpoints that were passed over.
    pub notes: Vec<String>,
}

impl Departure {
    /// Opens the newest good checkpoint of a run that was trained on a text, or imported.
    ///
    /// # Errors
    /// A folder without a plan or a good checkpoint, or with a run of a task.
    pub fn open(run: RunFolder) -> Result<Departure> {
        let plan = run.existing_plan()?;
        if let Some(task) = &plan.data.task {
            let message = format!("{} holds a run of the task {}", run.path().display(), task.facts().name);
            return Err(Error::refused(message, "--from needs a run that was trained on a text, or imported"));
        }
        let found = checkpoint::newest(run.path(), false, |path| {
            let state = checkpoint::state(path, &plan)?;
            let weights = checkpoint::weights(path, &state)?;
            Ok((state, weights))
        })?;
        let Some(Found { value: (state, weights), notes, .. }) = found else {
            let message = format!("{} has no checkpoint yet", run.path().display());
            return Err(Error::refused(message, "train it first: `kerple train --config FILE --out RUN`"));
        };
        Ok(Departure { run, plan, state, weights, notes })
    }

    /// The plan of that run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The run file of a run that begins here: that of the other run, with what `file` and `overrides` say in its place.
    ///
    /// A file's `[data]`, `[train]`, `[encoding]` and `seed` stand for the whole of the other run's. A `kind` of encoding that is
    /// set brings its own keys, not those of the kind before.
    ///
    /// # Errors
    /// A file or keys that cannot be read; a file that describes a model.
    pub fn config(&self, file: Option<&Path>, overrides: &[String]) -> Result<RunConfig> {
        let place = self.run.path().display().to_string();
        let mut table = toml::Table::try_from(self.plan.config())
            .map_err(|error| Error::refused(format!("{place}: {error}"), "its plan cannot be written as a run file"))?;
        if let Some(file) = file {
            let text = kerple_files::read_text(file).map_err(Error::io(file, "read the run file"))?;
            let refuse = |message: String, hint: &str| Error::Config {
                place: file.display().to_string(),
                message,
                hint: hint.to_owned(),
            };
            let own: toml::Table = toml::from_str(&text).map_err(|error| {
                refuse(
                    error.to_string().trim_end().to_owned(),
                    "every key of a run file is listed by `kerple describe config`",
                )
            })?;
            if own.contains_key("model") {
                let hint = "leave [model] out; --set model.KEY=VALUE changes what can be changed";
                return Err(refuse("the model is that of the run it begins with".to_owned(), hint));
            }
            table.extend(own);
        }
        let is_new = |set: &String| set.split_once('=').is_some_and(|(key, _)| key.trim() == "encoding.kind");
        if overrides.iter().any(is_new) {
            table.remove("encoding");
        }
        let text = toml::to_string(&table).expect("a table of a run file can be written");
        let mut config = RunConfig::parse(&text, &place, overrides)?;
        self.keep_length(&mut config);
        Ok(config)
    }

    /// Rates that are stretched by the length are so from the length that the weights were trained at.
    fn keep_length(&self, config: &mut RunConfig) {
        let own = self.plan.train_len;
        if config.train.train_len == own {
            return;
        }
        let Some(scaling) = config.encoding.scaling() else { return };
        let filled = match scaling {
            Scaling::Linear(mut keys) => {
                keys.original_len.get_or_insert(own);
                Scaling::Linear(keys)
            }
            Scaling::Ntk(mut keys) => {
                keys.original_len.get_or_insert(own);
                Scaling::Ntk(keys)
            }
            Scaling::Dynamic(mut keys) => {
                keys.original_len.get_or_insert(own);
                Scaling::Dynamic(keys)
            }
            Scaling::Yarn(mut keys) => {
                keys.original_len.get_or_insert(own);
                Scaling::Yarn(keys)
            }
            Scaling::Llama3(mut keys) => {
                keys.original_len.get_or_insert(own);
                Scaling::Llama3(keys)
            }
        };
        if let Ok(encoding) = config.encoding.with_rope_scaling(filled) {
            config.encoding = encoding;
        }
    }

    /// Opens the data of a run file, which may be that of the other run, wherever it lies now.
    ///
    /// # Errors
    /// What cannot be read; text of another tokenizer; a task.
    pub fn data(&self, config: &mut RunConfig) -> Result<Source> {
        if let Some(task) = &config.data.task {
            let message = format!("--from begins with a model of texts, data.task is {}", task.facts().name);
            return Err(Error::refused(message, "leave the task out"));
        }
        let source = match config.data == self.plan.data {
            true => {
                let (path, source) = self.run.find_data(&self.plan)?;
                config.data = DataConfig { path, ..config.data.clone() };
                source
            }
            false => Source::open(&config.data)?,
        };
        source.check_tokenizer(&self.plan.facts)?;
        Ok(source)
    }

    /// The plan of a run in `out` that begins here.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan_of(&self, config: &RunConfig, facts: DataFacts, out: &RunFolder) -> Result<Plan> {
        // a run that was begun goes on from where it began, however far the other one is now
        let begun = out.plan()?.and_then(|plan| plan.origin);
        let same = |origin: &Origin| matches!(origin, Origin::Run { plan, .. } if *plan == self.plan.hash);
        let origin = begun.filter(same).unwrap_or_else(|| Origin::Run {
            label: self.plan.label.clone(),
            plan: self.plan.hash.clone(),
            step: self.state.step,
            train_len: self.plan.train_len,
            weights: self.state.model_sha256.clone(),
            family: self.plan.origin.as_ref().and_then(Origin::family),
        });
        Plan::of_origin(config, facts, origin)
    }

    /// Makes the run, with these weights and no moments, unless it was begun before. Says which values begin anew.
    ///
    /// # Errors
    /// A model in which not all weights have a place, or other values than those of its encodings have none; what the file system
    /// refuses. Nothing is left behind.
    pub fn begin(&self, plan: &Plan, out: &RunFolder) -> Result<Vec<String>> {
        if out.plan()?.is_some() {
            return Ok(Vec::new());
        }
        // of its initial values only those of encodings are asked for
        let model = Decoder::empty(plan, &crate::device());
        let all = parameters::collect(&model);
        let taken = all.iter().map(|named| self.takes(plan, named)).collect::<Result<Vec<bool>>>()?;
        let known = |name: &String| all.iter().any(|named| named.name == *name) || name.starts_with(ENCODING);
        if let Some(left) = self.weights.names().iter().find(|name| !known(name)) {
            return Err(other_model(&format!("there is no place in it for `{left}`")));
        }
        let anew: Vec<&Named> = all.iter().zip(&taken).filter(|(_, taken)| !**taken).map(|(named, _)| named).collect();
        let slots: Vec<Slot> =
            all.iter().map(|n| Slot { name: n.name.clone(), shape: n.array.shape().to_vec() }).collect();
        let mut write = |path: &Path| {
            tensors::write(path, &slots, |number, take| {
                let Named { name, array } = &all[number];
                if !taken[number] {
                    return checkpoint::in_parts(array, take);
                }
                let mut values = vec![0.0; array.shape().iter().product()];
                checkpoint::fill(&self.weights, name, &mut values)?;
                take(values)
            })
        };
        let tokenizer = self.run.tokenizer(&self.plan).ok();
        let special = match &tokenizer {
            Some(tokenizer) => self.run.special_tokens_of(tokenizer)?,
            None => self.run.special_tokens()?,
        };
        let same = |_: &str| Ok(plan.clone());
        out.begin(Beginning { weights: &mut write, plan: &same, tokenizer: tokenizer.as_ref(), special })?;
        Ok(anew.into_iter().map(|named| named.name.clone()).collect())
    }

    /// Whether a parameter has the values of the other run.
    fn takes(&self, plan: &Plan, Named { name, array }: &Named) -> Result<bool> {
        let values: usize = array.shape().iter().product();
        let fits = self.weights.info(name).is_some_and(|(_, shape)| shape.iter().product::<usize>() == values);
        match name.starts_with(ENCODING) {
            true => Ok(fits && self.keeps_encoding(plan, name)),
            false if fits => Ok(true),
            false => Err(other_model(&format!("the run has no `{name}` of {values} values"))),
        }
    }

    /// Whether the encoding of a parameter is of the same kind in both.
    fn keeps_encoding(&self, plan: &Plan, name: &str) -> bool {
        let kind = |plan: &Plan| {
            let rest = name.strip_prefix("encoding.others.");
            let number = rest.and_then(|rest| rest.split('.').next()).and_then(|number| number.parse::<usize>().ok());
            let encoding = match number {
                None => (String::new(), plan.encoding.clone()),
                Some(number) => plan.model.other_encodings().get(number)?.clone(),
            };
            Some((encoding.0, encoding.1.method.kind(), encoding.1.scope))
        };
        kind(plan) == kind(&self.plan)
    }
}

/// How the names of parameters of encodings begin.
const ENCODING: &str = "encoding.";

fn other_model(what: &str) -> Error {
    let message = format!("the run cannot begin with these weights: {what}");
    Error::refused(message, "only positions may differ: leave model.KEY as in the run that it begins with")
}
