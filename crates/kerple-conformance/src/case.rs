//! A case of a manifest, read in one way whichever generator wrote it.
//!
//! Generators differ in where they write the parts of a case. [`Case`] is the only place that
//! knows; the runners of methods ask it for arrays, numbers and tolerances by name.
//!
//! | part | where it is looked for |
//! |---|---|
//! | name | `id`, else `name` |
//! | array of a role (`inputs`, `params`, `expected`) | an entry of the role: numbers, or a file and the name of a tensor; where the role is a file, a tensor of that file; without the role, a tensor of the case's own `file` |
//! | number | `static`, else `params`, else the case itself |
//! | tolerance | `tolerance` or `tol`, at the name of what is compared or for all of it |

use crate::folder::{ReferenceArray, ReferenceFolder};
use crate::{AllowedError, CaseComparison, Checked, EXACT};
use kerple_core::attention::AttentionDims;
use serde_json::{Value, json};
use std::path::{Component, Path, PathBuf};

/// Larger sizes are refused: far above all that exist, and far below what memory holds.
const LARGEST_SIZE: u64 = 1 << 20;

/// One case of a manifest.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub folder: &'a ReferenceFolder,
    entry: &'a Value,
}

/// Queries, keys, values and the gradient of the output, `[B, H, L, D]`.
pub struct AttentionInputs {
    pub dims: AttentionDims,
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    pub d_out: Vec<f64>,
}

impl<'a> Case<'a> {
    /// The cases that a manifest lists.
    pub fn all(folder: &'a ReferenceFolder) -> impl Iterator<Item = Case<'a>> {
        folder.entries().map(move |entry| Case { folder, entry })
    }

    pub fn id(&self) -> &'a str {
        let known = self.entry["id"].as_str().or(self.entry["name"].as_str());
        known.unwrap_or("(a case without id or name)")
    }

    /// The second part of an id such as `attn/kerple_log/L7`: the method.
    pub fn method(&self) -> &'a str {
        self.id().split('/').nth(1).unwrap_or_default()
    }

    pub fn get(&self, field: &str) -> &'a Value {
        &self.entry[field]
    }

    /// Names in an object field.
    pub fn keys(&self, field: &str) -> impl Iterator<Item = &'a str> {
        self.entry[field].as_object().into_iter().flatten().map(|(key, _)| key.as_str())
    }

    /// An array of a role, with its shape.
    pub fn array(&self, role: &str, key: &str) -> Checked<ReferenceArray> {
        match &self.entry[role] {
            Value::Null if self.entry["file"].is_string() => {
                self.folder.array(&json!({ "file": self.entry["file"], "key": key }))
            }
            Value::String(file) => self.folder.array(&json!({ "file": file, "key": key })),
            entries if entries[key].is_null() => Err(format!("{role}.{key} is missing")),
            entries => self.folder.array(&entries[key]),
        }
    }

    pub fn input(&self, key: &str) -> Checked<Vec<f64>> {
        self.array("inputs", key).map(|array| array.values)
    }

    pub fn param(&self, key: &str) -> Checked<Vec<f64>> {
        self.array("params", key).map(|array| array.values)
    }

    /// The parameters of these names, in their order.
    pub fn params(&self, names: &[&str]) -> Checked<Vec<Vec<f64>>> {
        names.iter().map(|name| self.param(name)).collect()
    }

    pub fn expected(&self, key: &str) -> Checked<Vec<f64>> {
        self.array("expected", key).map(|array| array.values)
    }

    /// The shape of an input.
    pub fn shape<const N: usize>(&self, key: &str) -> Checked<[usize; N]> {
        let shape = self.array("inputs", key)?.shape;
        shape.as_slice().try_into().map_err(|_| format!("{key} has the shape {shape:?}, not {N} axes"))
    }

    /// `q`, `k`, `v` and `dout` of self-attention.
    pub fn attention(&self) -> Checked<AttentionInputs> {
        let [batch, heads, len, head_dim] = self.shape("q")?;
        let dims =
            AttentionDims { batch, heads, kv_heads: heads, queries: len, keys: len, head_dim, value_dim: head_dim };
        let [q, k, v, d_out] = ["q", "k", "v", "dout"].map(|key| self.input(key));
        Ok(AttentionInputs { dims, q: q?, k: k?, v: v?, d_out: d_out? })
    }

    /// A setting, wherever the case has it.
    pub fn setting(&self, key: &str) -> &'a Value {
        let places = [&self.entry["static"], &self.entry["params"], self.entry].map(|place| &place[key]);
        places.into_iter().find(|value| !value.is_null()).unwrap_or(&Value::Null)
    }

    /// Keys of each sequence that are no padding, where a case has padding.
    pub fn lengths(&self) -> Option<Vec<usize>> {
        let length = |value: &Value| value.as_u64().map(|length| length as usize);
        self.setting("lengths").as_array()?.iter().map(length).collect()
    }

    pub fn optional_number(&self, key: &str) -> Option<f64> {
        self.setting(key).as_f64()
    }

    pub fn number(&self, key: &str) -> Checked<f64> {
        self.optional_number(key).ok_or_else(|| format!("the number `{key}` is missing"))
    }

    pub fn size(&self, key: &str) -> Checked<usize> {
        size(self.setting(key), key)
    }

    /// A size that is not below `least`.
    pub fn size_from(&self, key: &str, least: usize) -> Checked<usize> {
        let found = self.size(key)?;
        if found >= least { Ok(found) } else { Err(format!("`{key}` is {found}, it must be at least {least}")) }
    }

    /// The tolerance of `name`, or that of the whole case; exact where there is none.
    pub fn tolerance(&self, name: &str) -> AllowedError {
        let [ours, theirs] = [&self.entry["tolerance"], &self.entry["tol"]];
        let number = |entry: &Value, keys: [&str; 2]| keys.iter().find_map(|key| entry[*key].as_f64());
        for entry in [&ours[name], ours, &theirs[name], &theirs["default"], theirs] {
            let (absolute, relative) = (number(entry, ["atol", "abs"]), number(entry, ["rtol", "rel"]));
            if entry["exact"].as_bool() == Some(true) {
                return EXACT;
            }
            if absolute.is_some() || relative.is_some() {
                return AllowedError { absolute: absolute.unwrap_or(0.0), relative: relative.unwrap_or(0.0) };
            }
        }
        AllowedError { absolute: number(ours, [&format!("{name}_abs"), ""]).unwrap_or(0.0), relative: 0.0 }
    }

    /// Compares what an engine computed with the expected array of this name.
    pub fn compare(&self, found: &mut CaseComparison, key: &str, got: &[f64], tolerance: AllowedError) -> Checked<()> {
        found.compare(key, got, &self.expected(key)?, tolerance);
        Ok(())
    }

    /// The same, by a tolerance relative to the largest expected value: that of the case, or `single` where that is wider.
    pub fn compare_to_largest(
        &self,
        found: &mut CaseComparison,
        key: &str,
        got: &[f64],
        single: Option<f64>,
    ) -> Checked<()> {
        let expected = self.expected(key)?;
        let own = self.number("rtol_f64")?;
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        let tolerance = AllowedError { absolute: single.unwrap_or(own).max(own) * largest, relative: 0.0 };
        found.compare(key, got, &expected, tolerance);
        Ok(())
    }

    /// Whether the case's own file has a tensor of this name.
    pub fn has(&self, key: &str) -> bool {
        !self.entry["tensors"][key].is_null()
    }

    /// Refuses a case whose file has another size than it promises.
    pub fn check_file(&self) -> Checked<()> {
        let (Some(file), Some(stated)) = (self.entry["file"].as_str(), self.entry["bytes"].as_u64()) else {
            return Ok(());
        };
        let path = self.folder.path().join(file);
        let found = std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        if stated == found { Ok(()) } else { Err(format!("{}: {found} bytes instead of {stated}", path.display())) }
    }

    /// The folder that the case names, inside of the folder of its manifest.
    pub fn subfolder(&self) -> Checked<PathBuf> {
        let name = self.entry["folder"].as_str().ok_or("folder is missing")?;
        if Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            Ok(self.folder.path().join(name))
        } else {
            Err(format!("folder `{name}` is missing next to the manifest"))
        }
    }
}

/// A size, which may be stored anywhere, by the name that errors use.
pub fn size(value: &Value, name: &str) -> Checked<usize> {
    match value.as_u64() {
        Some(found) if found <= LARGEST_SIZE => Ok(found as usize),
        Some(found) => Err(format!("`{name}` is {found}, it must be at most {LARGEST_SIZE}")),
        None => Err(format!("the size `{name}` is missing")),
    }
}
