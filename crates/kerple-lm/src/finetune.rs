//! Fine-tuning: runs that initialise from the weights of another run (`train --init-from`), with
//! other positions, another length or other data.
//!
//! The models of both plans are compared key by key; only positions may differ. An encoding
//! initialises from the other run where both have the same kind and the same learned parameters;
//! other encodings are initialised as in a fresh run. Defaults that depend on the training length
//! keep the values of the length that the weights were trained at.

use crate::checkpoint::{self, CheckpointState, NewestCheckpoint};
use crate::config::{DataConfig, RunConfig};
use crate::corpus::DataSource;
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::plan::{self, DataInfo, Plan};
use crate::run::{InitialRun, RunFolder};
use crate::tensors::{self, TensorFile, TensorSpec};
use kerple_burn::parameters::{self, NamedParameter};
use kerple_core::encoding::{Encoding, Geometry, Method, kind_of};
use kerple_run::InitFrom;
use std::path::Path;

/// The run that another one is initialised from.
#[derive(Debug)]
pub struct BaseRun {
    run: RunFolder,
    plan: Plan,
    state: CheckpointState,
    weights: TensorFile,
    /// What was odd, for the user: damaged checkpoints that were passed over.
    pub notes: Vec<String>,
}

impl BaseRun {
    /// Whether its weights came from elsewhere, and were not trained here since.
    pub fn is_imported(&self) -> bool {
        matches!(self.plan.init_from, Some(InitFrom::Imported { .. }))
    }

    /// Opens the newest good checkpoint of a run that was trained on a text, or imported.
    ///
    /// # Errors
    /// A folder without a plan or a good checkpoint, or with a run of a task.
    pub fn open(run: RunFolder) -> Result<BaseRun> {
        let plan = run.existing_plan()?;
        if let Some(task) = &plan.data.task {
            let message = format!("{} contains a run of the task {}", run.path().display(), task.facts().name);
            return Err(Error::refused(message, "give --init-from a run that was trained on a text or imported"));
        }
        let found = checkpoint::newest(run.path(), false, |path| {
            let state = checkpoint::state(path, &plan)?;
            let weights = checkpoint::weights(path, &state)?;
            Ok((state, weights))
        })?;
        let Some(NewestCheckpoint { value: (state, weights), notes, .. }) = found else {
            let message = format!("{} has no checkpoint", run.path().display());
            return Err(Error::refused(message, "train it first: `kerple train --config FILE --out RUN`"));
        };
        Ok(BaseRun { run, plan, state, weights, notes })
    }

    /// The plan of that run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The run file of a run that begins here: that of the other run, with what `file` and `overrides` say in its place.
    ///
    /// A file's `[data]`, `[train]`, `[encoding]` and `seed` stand for the whole of the other run's. Another `kind` of encoding
    /// that is set brings its own keys, not those of the kind before.
    ///
    /// # Errors
    /// A file or keys that cannot be read; a file that describes a model.
    pub fn config(&self, file: Option<&Path>, overrides: &[String]) -> Result<RunConfig> {
        let place = self.run.path().display().to_string();
        let mut table = toml::Table::try_from(self.plan.config())
            .map_err(|error| Error::refused(format!("{place}: {error}"), "its plan cannot be written as a run file"))?;
        if let Some(file) = file {
            let text = kerple_run::files::read_text(file).map_err(Error::io(file, "read the run file"))?;
            let refuse = |message: String, hint: &str| Error::Config {
                place: file.display().to_string(),
                message,
                hint: hint.to_owned(),
            };
            let own: toml::Table = toml::from_str(&text).map_err(|error| {
                refuse(error.to_string().trim_end().to_owned(), "`kerple describe config` lists the keys of a run file")
            })?;
            if own.contains_key("model") {
                let hint = "remove [model]; use --set model.KEY=VALUE for keys that may change";
                return Err(refuse("--init-from takes the model from the other run".to_owned(), hint));
            }
            table.extend(own);
        }
        let key = |set: &String| set.split_once('=').map_or("", |(key, _)| key.trim()).to_owned();
        if overrides.iter().any(|set| key(set) == "model.preset") {
            let message = "--init-from takes sizes from the other run";
            return Err(Error::config("--set model.preset", message, "remove it"));
        }
        let before = table.get("encoding").and_then(|encoding| encoding.get("kind")).cloned();
        let mut kinds =
            overrides.iter().filter_map(|set| set.split_once('=')).filter(|(key, _)| key.trim() == "encoding.kind");
        let is_other = |(_, kind): (&str, &str)| {
            let kind = kind.trim().trim_matches(['"', '\'']);
            before.as_ref().and_then(toml::Value::as_str) != Some(kind_of(kind).unwrap_or(kind))
        };
        if kinds.next_back().is_some_and(is_other) {
            table.remove("encoding");
        }
        let text = toml::to_string(&table).expect("a table of a run file can be written");
        let mut config = RunConfig::parse(&text, &place, overrides)?;
        self.keep_length(&mut config);
        Ok(config)
    }

    /// What follows from the training length follows from the one that the weights were trained at: all of an encoding that
    /// stays, and of any the rates that are stretched by the length.
    fn keep_length(&self, config: &mut RunConfig) {
        let own = self.plan.train_len;
        if config.train.train_len == own {
            return;
        }
        let kept = |before: Option<&Encoding>, encoding: &Encoding| {
            if before.is_some_and(|before| is_same_method(&before.method, &encoding.method)) {
                return encoding.pinned(own);
            }
            let scaled = encoding.scaling().and_then(|scaling| encoding.with_rope_scaling(scaling.pinned(own)).ok());
            scaled.unwrap_or_else(|| encoding.clone())
        };
        config.encoding = kept(Some(&self.plan.encoding), &config.encoding);
        for (name, kind) in &mut config.model.layers {
            let before = self.plan.model.layers.get(name).and_then(|kind| kind.encoding.as_ref());
            kind.encoding = kind.encoding.as_ref().map(|encoding| kept(before, encoding));
        }
    }

    /// Opens the data of a run file, which may be that of the other run, at its current location.
    ///
    /// # Errors
    /// What cannot be read; text of another tokenizer; a task.
    pub fn data(&self, config: &mut RunConfig) -> Result<DataSource> {
        if let Some(task) = &config.data.task {
            let message = format!("--init-from needs a language model, but data.task is {}", task.facts().name);
            return Err(Error::refused(message, "remove data.task"));
        }
        let source = if config.data == self.plan.data {
            let (path, source) = self.run.find_data(&self.plan)?;
            config.data = DataConfig { path, ..config.data.clone() };
            source
        } else {
            DataSource::open(&config.data)?
        };
        source.check_tokenizer(&self.plan.data_info)?;
        Ok(source)
    }

    /// The plan of a run in `out` that begins here.
    ///
    /// # Errors
    /// As [`Plan::new`]; a model that is other than that of the other run in more than its positions.
    pub fn plan_of(&self, config: &RunConfig, facts: DataInfo, out: &RunFolder) -> Result<Plan> {
        // a run that was begun goes on from where it began, however far the other one is now
        let before = out.plan()?;
        let is_new = before.is_none();
        let begun = before.and_then(|plan| plan.init_from);
        let same = |init_from: &InitFrom| matches!(init_from, InitFrom::Run { plan, .. } if *plan == self.plan.hash);
        let init_from = begun.filter(same).unwrap_or_else(|| InitFrom::Run {
            label: self.plan.label.clone(),
            plan: self.plan.hash.clone(),
            step: self.state.step,
            train_len: self.plan.train_len,
            weights: self.state.model_sha256.clone(),
            family: self.plan.init_from.as_ref().and_then(InitFrom::family),
        });
        let plan = Plan::of_init_from(config, facts, init_from)?;
        if is_new {
            self.refuse_other_model(&plan)?;
        }
        Ok(plan)
    }

    /// Refuses a model that would compute something else with the same weights.
    fn refuse_other_model(&self, plan: &Plan) -> Result<()> {
        let other = plan::of_models(&self.plan, plan);
        if other.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = other.iter().map(|difference| difference.key.as_str()).collect();
        let message = format!("the run cannot be initialised from these weights: {}", plan::line(&other));
        let hint = format!("keep {} as in the run that --init-from names; only positions may differ", keys.join(", "));
        Err(Error::refused(message, hint))
    }

    /// Makes the run, with these weights and no moments, unless it was begun before. Says for the user what is other in it, and
    /// which values begin anew.
    ///
    /// # Errors
    /// A model that cannot take all weights, or that lacks values other than those of its
    /// encodings; errors of the file system. No partial output is kept.
    pub fn create_run(&self, plan: &Plan, out: &RunFolder) -> Result<Vec<String>> {
        if out.plan()?.is_some() {
            return Ok(Vec::new());
        }
        // of its initial values only those of encodings are asked for
        let model = Decoder::empty(plan, &crate::device());
        let all = parameters::collect(&model);
        let sources = all.iter().map(|named| self.source(plan, named)).collect::<Result<Vec<Option<String>>>>()?;
        let known = |name: &String| all.iter().any(|named| named.name == *name) || name.starts_with(ENCODING);
        if let Some(left) = self.weights.names().iter().find(|name| !known(name)) {
            return Err(other_model(&format!("the model has no parameter `{left}`")));
        }
        let slots: Vec<TensorSpec> =
            all.iter().map(|n| TensorSpec { name: n.name.clone(), shape: n.array.shape().to_vec() }).collect();
        let mut write = |path: &Path| {
            tensors::write(path, &slots, |number, take| {
                let array = &all[number].array;
                let Some(source) = &sources[number] else { return checkpoint::in_parts(array, take) };
                let mut values = vec![0.0; array.shape().iter().product()];
                checkpoint::fill(&self.weights, source, &mut values)?;
                take(values)
            })
        };
        // that of bytes needs no file, and where the run carries none training copies that of its text
        let tokenizer = self.run.carried_tokenizer(&self.plan)?;
        let special = self.run.special_tokens()?;
        let same = |_: &str| Ok(plan.clone());
        out.create(InitialRun { weights: &mut write, plan: &same, tokenizer: tokenizer.as_ref(), special })?;
        let anew =
            all.iter().zip(&sources).filter(|(_, source)| source.is_none()).map(|(named, _)| named.name.as_str());
        Ok(self.remarks(plan, &anew.collect::<Vec<_>>()))
    }

    fn remarks(&self, plan: &Plan, anew: &[&str]) -> Vec<String> {
        let other = plan::of_positions(&self.plan, plan);
        let other =
            (!other.is_empty()).then(|| format!("changed from {}: {}", self.run.path().display(), plan::line(&other)));
        let anew =
            (!anew.is_empty()).then(|| format!("newly initialised parameters of {}: {}", plan.label, anew.join(", ")));
        other.into_iter().chain(anew).collect()
    }

    /// The name that a parameter has in the other run, where it takes its values from there.
    fn source(&self, plan: &Plan, NamedParameter { name, array }: &NamedParameter) -> Result<Option<String>> {
        let values: usize = array.shape().iter().product();
        let fits =
            |name: &String| self.weights.info(name).is_some_and(|(_, shape)| shape.iter().product::<usize>() == values);
        if name.starts_with(ENCODING) {
            Ok(self.source_of_encoding(plan, name).filter(fits))
        } else if fits(name) {
            Ok(Some(name.clone()))
        } else {
            Err(other_model(&format!(
                "the other run has no parameter `{name}` with {values} \
                values"
            )))
        }
    }

    /// The same of a parameter of an encoding: encodings of kinds of layers are numbered, and known by the names of the kinds.
    fn source_of_encoding(&self, plan: &Plan, name: &str) -> Option<String> {
        let numbered = name.strip_prefix(OTHERS).and_then(|rest| rest.split_once('.'));
        let Some((number, rest)) = numbered else {
            let geometries = [self.plan.geometry(), plan.geometry()];
            return self.keeps([&self.plan.encoding, &plan.encoding], geometries).then(|| name.to_owned());
        };
        let (others, before) = (plan.model.other_encodings(), self.plan.model.other_encodings());
        let (kind, encoding) = others.get(number.parse::<usize>().ok()?)?;
        let geometry = |plan: &Plan| plan.model.kind_geometry(kind, &plan.geometry());
        let is_same = |(other, old): &(String, Encoding)| {
            other == kind && self.keeps([old, encoding], [geometry(&self.plan), geometry(plan)])
        };
        let place = before.iter().position(is_same)?;
        Some(format!("{OTHERS}{place}.{rest}"))
    }

    /// Whether an encoding keeps all that it has learned: what is learned has the same meaning and the same sizes.
    fn keeps(&self, [old, new]: [&Encoding; 2], [before, now]: [Geometry; 2]) -> bool {
        let sizes = |encoding: &Encoding, geometry: &Geometry| -> Vec<(String, Vec<usize>)> {
            encoding.parameters(geometry).into_iter().map(|own| (own.name, own.shape)).collect()
        };
        is_same_method(&old.method, &new.method) && old.share == new.share && sizes(old, &before) == sizes(new, &now)
    }
}

/// Whether what is learned means the same: kinds are the same, so are the expressions of kernels, and what DAPE adapts.
fn is_same_method(old: &Method, new: &Method) -> bool {
    match (old, new) {
        (Method::Kernel(old), Method::Kernel(new)) => old == new,
        (Method::Dape(old), Method::Dape(new)) => is_same_method(&old.base.0, &new.base.0),
        _ => old.kind() == new.kind(),
    }
}

/// How the names of parameters of encodings begin.
const ENCODING: &str = "encoding.";

/// The same of encodings of kinds of layers, before their number.
const OTHERS: &str = "encoding.others.";

fn other_model(what: &str) -> Error {
    let message = format!("the run cannot be initialised from these weights: {what}");
    Error::refused(message, "keep model.KEY as in the run that --init-from names; only positions may differ")
}
