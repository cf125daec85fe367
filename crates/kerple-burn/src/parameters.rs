//! Iterating over the parameters of a module: names, values, gradients, and how each is updated.
//!
//! The order is that of the module's fields and is the same in every function here. Only
//! [`collect`] and [`load`], for checkpoints, copy values to the host; everything else stays on the
//! device.

use crate::host_array::HostArray;
use burn::backend::Flex;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor, TensorData};
use std::collections::BTreeMap;

/// A parameter with its path in the module, e.g. `blocks.0.attention.qkv.weight`.
#[derive(Clone, Debug)]
pub struct NamedParameter {
    /// Path, components joined by dots.
    pub name: String,
    /// The values: shared with the module on the CPU, a copy from other devices.
    pub array: HostArray,
}

/// The values of a tensor on the host, without its autodiff graph.
pub fn on_host<const D: usize>(tensor: Tensor<D>) -> HostArray {
    let inner = plain(tensor);
    match inner.clone().try_into_primitive::<Flex>() {
        Ok(primitive) => HostArray::new(primitive),
        Err(_) => HostArray::from_data(inner.into_data()),
    }
}

/// The tensor outside autodiff.
pub(crate) fn plain<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.device().is_autodiff() { tensor.inner() } else { tensor }
}

/// `tensor` as a parameter's new value, where the old one was `tracked` by autodiff or not.
pub(crate) fn as_parameter<const D: usize>(tensor: Tensor<D>, tracked: bool) -> Tensor<D> {
    if tracked { Tensor::from_inner(tensor).require_grad() } else { tensor }
}

/// A field of this name is no part of paths: what models of several kinds share has the names it would have in each.
const SHARED: &str = "trunk";

/// A visitor that knows the path to each parameter.
struct ParameterWalk<F> {
    path: Vec<String>,
    found: F,
}

/// What a walk does with a parameter of any rank.
trait ParameterVisitor {
    fn visit<const D: usize>(&mut self, path: &[String], param: &Param<Tensor<D>>);
}

impl<F: ParameterVisitor> ModuleVisitor for ParameterWalk<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        if name != SHARED {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, name: &str, _container: &str) {
        if name != SHARED {
            self.path.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.visit(&self.path, param);
    }
}

fn walk<M: Module, F: ParameterVisitor>(module: &M, found: F) -> F {
    let mut walk = ParameterWalk { path: Vec::new(), found };
    module.visit(&mut walk);
    walk.found
}

impl ParameterVisitor for Vec<NamedParameter> {
    fn visit<const D: usize>(&mut self, path: &[String], param: &Param<Tensor<D>>) {
        self.push(NamedParameter { name: path.join("."), array: on_host(param.val()) });
    }
}

/// Every parameter with its path and values.
pub fn collect<M: Module>(module: &M) -> Vec<NamedParameter> {
    walk(module, Vec::new())
}

impl ParameterVisitor for Vec<String> {
    fn visit<const D: usize>(&mut self, path: &[String], _param: &Param<Tensor<D>>) {
        self.push(path.join("."));
    }
}

/// The path of every parameter.
pub fn names<M: Module>(module: &M) -> Vec<String> {
    walk(module, Vec::new())
}

struct FlatValues(Vec<Tensor<1>>);

impl ParameterVisitor for FlatValues {
    fn visit<const D: usize>(&mut self, _path: &[String], param: &Param<Tensor<D>>) {
        self.0.push(flat(plain(param.val())));
    }
}

/// The values of every parameter, flattened, on its device.
pub fn values<M: Module>(module: &M) -> Vec<Tensor<1>> {
    walk(module, FlatValues(Vec::new())).0
}

/// The values in row-major order; shares them when they lie so.
pub(crate) fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let len = tensor.shape().num_elements();
    tensor.reshape([len])
}

struct TakeGradients<'a> {
    gradients: &'a mut Gradients,
    found: Vec<Option<Tensor<1>>>,
}

impl ParameterVisitor for TakeGradients<'_> {
    fn visit<const D: usize>(&mut self, _path: &[String], param: &Param<Tensor<D>>) {
        self.found.push(param.val().grad_remove(self.gradients).map(flat));
    }
}

/// Takes each parameter's gradient, flattened, out of `gradients`; `None` for a parameter the loss does not depend on.
pub fn gradients<M: Module>(module: &M, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
    walk(module, TakeGradients { gradients, found: Vec::new() }).found
}

/// `fill` says whether it could; a reference, so that each module is mapped by one function.
struct LoadValues<'a> {
    names: std::vec::IntoIter<String>,
    fill: &'a mut dyn FnMut(&str, &mut [f32]) -> bool,
    has_failed: bool,
}

impl ModuleMapper for LoadValues<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.names.next().expect("mapping visits what visiting visits");
        if self.has_failed {
            return param;
        }
        param.map(|tensor| {
            let tracked = tensor.device().is_autodiff();
            let old = plain(tensor);
            let mut values = vec![0.0; old.shape().num_elements()];
            self.has_failed = !(self.fill)(&name, &mut values);
            let new = match self.has_failed {
                false => Tensor::from_data(TensorData::new(values, old.dims()), (&old.device(), old.dtype())),
                true => old,
            };
            as_parameter(new, tracked)
        })
    }
}

/// Replaces each parameter's values by what `fill` writes, given its path.
///
/// # Errors
/// The first error of `fill`; that parameter and those after it keep their values.
pub fn load<M: Module, E>(module: M, mut fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>) -> (M, Result<(), E>) {
    let mut filled = Ok(());
    let mut fill = |name: &str, values: &mut [f32]| {
        filled = fill(name, values);
        filled.is_ok()
    };
    let names = names(&module).into_iter();
    let module = module.map(&mut LoadValues { names, fill: &mut fill, has_failed: false });
    (module, filled)
}

struct Detach;

impl ModuleMapper for Detach {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(plain)
    }
}

/// The module for inference: the same values, shared, outside autodiff.
pub fn without_autodiff<M: Module>(module: &M) -> M {
    module.clone().map(&mut Detach)
}

/// How a parameter is updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParamGroup {
    /// Whether weight decay applies.
    pub decay: bool,
    /// Smallest and largest value; values are projected into it after each update.
    pub range: Option<[f64; 2]>,
}

/// Parameter groups that modules set. By default weight decay applies to matrices and not to vectors, and nothing has a range:
/// the convention of GPT-NeoX for weights, norms and biases.
#[derive(Clone, Debug, Default)]
pub struct ParamGroups(BTreeMap<ParamId, ParamGroup>);

impl ParamGroups {
    /// Sets how `param` is updated.
    pub fn set<const D: usize>(&mut self, param: &Param<Tensor<D>>, group: ParamGroup) {
        self.0.insert(param.id, group);
    }

    fn of<const D: usize>(&self, param: &Param<Tensor<D>>) -> ParamGroup {
        self.0.get(&param.id).copied().unwrap_or(ParamGroup { decay: D > 1, range: None })
    }
}

/// A module that knows how its parameters are updated. A module that contains others passes the call on to them.
pub trait ParamGroupOverrides {
    /// Sets the groups that differ from the convention of [`ParamGroups`].
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        let _ = groups;
    }
}

struct CollectGroups {
    overrides: ParamGroups,
    groups: Vec<ParamGroup>,
}

impl ParameterVisitor for CollectGroups {
    fn visit<const D: usize>(&mut self, _path: &[String], param: &Param<Tensor<D>>) {
        self.groups.push(self.overrides.of(param));
    }
}

/// How every parameter is updated.
pub fn param_groups<M: Module + ParamGroupOverrides>(module: &M) -> Vec<ParamGroup> {
    let mut overrides = ParamGroups::default();
    module.override_param_groups(&mut overrides);
    walk(module, CollectGroups { overrides, groups: Vec::new() }).groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{LayerInit, Linear};
    use crate::plan::InitKind;
    use burn::tensor::{DType, Device};
    use rand::SeedableRng;

    fn layer() -> Linear {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
        let device = Device::flex().autodiff();
        let mut init = LayerInit {
            rng: Some(&mut rng),
            kind: InitKind::Normal,
            std: 1.0,
            std_out: 1.0,
            device: &device,
            dtype: DType::F32,
        };
        Linear::new([3, 2], true, 1.0, &mut init)
    }

    #[test]
    fn parameters_are_named_and_loaded() {
        let before = collect(&layer());
        assert_eq!(before.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["weight", "bias"]);
        assert_eq!(before[0].array.shape(), [3, 2]);
        let (layer, filled) = load(layer(), |name, values| {
            values.fill(if name == "bias" { 6.0 } else { 5.0 });
            Ok::<(), ()>(())
        });
        filled.unwrap();
        let after = collect(&layer);
        assert_eq!(after[0].array.slice::<f32>(), [5.0; 6]);
        assert_eq!(after[1].array.slice::<f32>(), [6.0; 2]);

        let loss = layer.forward(Tensor::ones([1, 4, 3], &Device::flex().autodiff())).sum();
        let found = gradients(&layer, &mut loss.backward());
        assert_eq!(on_host(found[0].clone().unwrap()).slice::<f32>(), [4.0; 6]);
        assert_eq!(on_host(found[1].clone().unwrap()).slice::<f32>(), [4.0; 2]);
    }

    #[test]
    fn a_load_that_fails_leaves_a_whole_module() {
        let before = collect(&layer());
        let (layer, filled) = load(layer(), |name, values| {
            values.fill(5.0);
            if name == "bias" { Err("no bias") } else { Ok(()) }
        });
        assert_eq!(filled, Err("no bias"));
        let after = collect(&layer);
        assert_eq!(after[0].array.slice::<f32>(), [5.0; 6]);
        assert_eq!(after[1].array.slice::<f32>(), before[1].array.slice::<f32>());
    }

    #[test]
    fn overrides_replace_the_convention() {
        let (layer, group) = (layer(), ParamGroup { decay: true, range: Some([0.0, 1.0]) });
        let bias = layer.bias.as_ref().expect("the layer has a bias");
        let mut groups = ParamGroups::default();
        groups.set(bias, group);
        assert_eq!(groups.of(&layer.weight), ParamGroup { decay: true, range: None });
        assert_eq!(groups.of(bias), group);
        assert_eq!(ParamGroups::default().of(bias), ParamGroup { decay: false, range: None });
    }
}
