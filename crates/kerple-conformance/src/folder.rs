//! Reading a folder of reference values.

use crate::{Checked, Error, FOLDER_HINT, Result};
use burn::tensor::Device;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A manifest and the files it names.
pub struct ReferenceFolder {
    path: PathBuf,
    manifest: Value,
    files: RefCell<HashMap<String, std::rc::Rc<Vec<u8>>>>,
    /// Another device than the processor, and how engines there are called.
    device: Option<(Device, String)>,
}

/// An array of numbers.
#[derive(Clone, Debug)]
pub struct ReferenceArray {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    /// Whether they are stored in double precision.
    pub double: bool,
}

/// Files whose cases no manifest lists. Their generator writes all of them next to its manifest.
pub const CHE: &str = "che.json";
pub const CHE_ENCODER: &str = "che_encoder.json";
pub const CHE_ENCODER_TENSORS: &str = "che_encoder.safetensors";
pub const EXTRAS: &str = "extras.json";
const TOGETHER: [&str; 4] = [CHE, CHE_ENCODER, CHE_ENCODER_TENSORS, EXTRAS];

impl ReferenceFolder {
    pub fn open(path: &Path) -> Result<ReferenceFolder> {
        let file = path.join("manifest.json");
        let text = kerple_run::files::read_text(&file).map_err(Error::io(&file, "read"))?;
        let damaged = |message: String| Error::damaged(&file, message, FOLDER_HINT);
        let manifest: Value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if !manifest["cases"].is_array() {
            return Err(damaged("the list `cases` is missing".to_owned()));
        }
        Ok(ReferenceFolder { path: path.to_owned(), manifest, files: RefCell::default(), device: None })
    }

    /// The same, with attention run on this device too, which is called so.
    pub fn on(self, device: Option<(Device, String)>) -> ReferenceFolder {
        let device = device.map(|(device, name)| (device, format!("burn on {name} f32")));
        ReferenceFolder { device, ..self }
    }

    pub fn device(&self) -> Option<(&Device, &str)> {
        self.device.as_ref().map(|(device, engine)| (device, &engine[..]))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder's own name, whatever way to it was written.
    pub fn name(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The set that the manifest names.
    pub fn set(&self) -> Option<&str> {
        self.manifest["set"].as_str()
    }

    /// The entries of the manifest's cases.
    pub fn entries(&self) -> impl Iterator<Item = &Value> {
        self.manifest["cases"].as_array().into_iter().flatten()
    }

    /// Refuses a manifest whose number of cases differs from what it promises.
    pub fn is_whole(&self) -> Checked<()> {
        match (self.manifest["n_cases"].as_u64(), self.entries().count() as u64) {
            (Some(said), found) if said != found => Err(format!(
                "n_cases is {said}, but the file \
                lists {found}"
            )),
            _ => Ok(()),
        }
    }

    /// A file beside the manifest; `None`: there is none, and there is to be none.
    ///
    /// What is to be there is what the manifest promises at `beside`. Of a manifest that says nothing of it, the files that are
    /// written together are all there or none.
    pub fn beside(&self, file: &str) -> Checked<Option<Value>> {
        let path = self.path.join(file);
        match kerple_run::files::read_text(&path) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !self.expects(file) => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    fn expects(&self, file: &str) -> bool {
        let is_there = |other: &&str| match std::fs::symlink_metadata(self.path.join(other)) {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        };
        if self.manifest["beside"].is_null() {
            TOGETHER.contains(&file) && TOGETHER.iter().any(is_there)
        } else {
            self.promised(file).is_some()
        }
    }

    /// How many cases the manifest says a file beside it has.
    pub fn promised(&self, file: &str) -> Option<u64> {
        self.manifest["beside"][file].as_u64()
    }

    /// The numbers behind an entry: a literal, a list, or a reference to a tensor.
    pub fn array(&self, entry: &Value) -> Checked<ReferenceArray> {
        match entry {
            Value::Number(number) => {
                Ok(ReferenceArray { shape: vec![], values: vec![number.as_f64().unwrap_or(f64::NAN)], double: true })
            }
            Value::Array(items) => {
                let values = items.iter().map(|item| item.as_f64().ok_or_else(|| format!("{item} is not a number")));
                Ok(ReferenceArray { shape: vec![items.len()], values: values.collect::<Checked<_>>()?, double: true })
            }
            Value::Object(_) => self.tensor(entry),
            other => Err(format!("expected numbers, found {other}")),
        }
    }

    fn tensor(&self, entry: &Value) -> Checked<ReferenceArray> {
        let key = entry["key"].as_str().or(entry["tensor"].as_str());
        let (Some(file), Some(key)) = (entry["file"].as_str(), key) else {
            return Err(format!("expected `file` and `key`, found {entry}"));
        };
        if !self.files.borrow().contains_key(file) {
            let path = self.path.join(file);
            let data = kerple_run::files::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            self.files.borrow_mut().insert(file.to_owned(), data.into());
        }
        let data = self.files.borrow()[file].clone();
        let tensors = SafeTensors::deserialize(&data).map_err(|error| format!("{file}: {error}"))?;
        let view = tensors.tensor(key).map_err(|error| format!("{file}, {key}: {error}"))?;
        let bytes = view.data();
        fn all<const N: usize>(bytes: &[u8], number: fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks::<N>().0.iter().map(|chunk| number(*chunk)).collect()
        }
        let values = match view.dtype() {
            Dtype::F64 => all(bytes, f64::from_le_bytes),
            Dtype::F32 => all(bytes, |b| f32::from_le_bytes(b).into()),
            Dtype::BF16 => all(bytes, |b: [u8; 2]| f32::from_le_bytes([0, 0, b[0], b[1]]).into()),
            Dtype::I64 => all(bytes, |b| i64::from_le_bytes(b) as f64),
            Dtype::I32 => all(bytes, |b| i32::from_le_bytes(b).into()),
            Dtype::U8 => all(bytes, |b: [u8; 1]| b[0].into()),
            other => return Err(format!("{file}, {key}: tensors of type {other:?} are not supported")),
        };
        Ok(ReferenceArray { shape: view.shape().to_vec(), values, double: view.dtype() == Dtype::F64 })
    }
}
