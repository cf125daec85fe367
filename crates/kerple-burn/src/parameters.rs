//! Iterating over the parameters of a module: names, values, gradients, and how each is updated.
//!
//! The order is that of the module's fields and is the same in every function here. Only
//! [`collect`] and [`load`], for checkpoints, copy values to the host; everything else stays on the
//! device.

use crate::array::Array;
use burn::backend::Flex;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor, TensorData};
use std::collections::BTreeMap;

/// A parameter with its path in the module, e.g. `blocks.0.attention.qkv.weight`.
#[derive(Clone, Debug)]
pub struct Named {
    /// Path, components joined by dots.
    pub name: String,
    /// The values: shared with the module on the CPU, a copy from other devices.
    pub array: Array,
}

/// The values of a tensor on the host, without its autodiff graph.
pub fn on_host<const D: usize>(tensor: Tensor<D>) -> Array {
    let inner = plain(tensor);
    match inner.clone().try_into_primitive::<Flex>() {
        Ok(primitive) => Array::new(primitive),
        Err(_) => Array::from_data(inner.into_data()),
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
struct Walk<F> {
    path: Vec<String>,
    found: F,
}

/// What a walk does with a parameter of any rank.
trait Visit {
    fn visit<const D: usize>(&mut self, path: &[String], param: &Param<Tensor<D>>);
}

impl<F: Visit> ModuleVisitor for Walk<F> {
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

fn walk<M: Module, F: Visit>(module: &M, found: F) -> F {
    let mut walk = Walk { path: Vec::new(), found };
    module.visit(&mut walk);
    walk.found
}

impl Visit for Vec<Named> {
    fn visit<const D: usize>(&mut self, path: &[String], param: &Param<Tensor<D>>) {
        self.push(Named { name: path.join("."), array: on_host(param.val()) });
    }
}

/// Every parameter with its path and values.
pub fn collect<M: Module>(module: &M) -> Vec<Named> {
    walk(module, Vec::new())
}

impl Visit for Vec<String> {
    fn visit<const D: usize>(&mut self, path: &[String], _param: &Param<Tensor<D>>) {
        self.push(path.join("."));
    }
}

/// The path of every parameter.
pub fn names<M: Module>(module: &M) -> Vec<String> {
    walk(module, Vec::new())
}

struct Flat(Vec<Tensor<1>>);

impl Visit for Flat {
    fn visit<const D: usize>(&mut self, _path: &[String], param: &Param<Tensor<D>>) {
        self.0.push(flat(plain(param.val())));
    }
}

/// The values of every parameter, flattened, on its device.
pub fn values<M: Module>(module: &M) -> Vec<Tensor<1>> {
    walk(module, Flat(Vec::new())).0
}

/// The values in row-major order; shares them when they lie so.
pub(crate) fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let len = tensor.shape().num_elements();
    tensor.reshape([len])
}

struct Take<'a> {
    gradients: &'a mut Gradients,
    found: Vec<Option<Tensor<1>>>,
}

impl Visit for Take<'_> {
    fn visit<const D: usize>(&mut self, _path: &[String], param: &Param<Tensor<D>>) {
        self.found.push(param.val().grad_remove(self.gradients).map(flat));
    }
}

/// Takes each parameter's gradient, flattened, out of `gradients`; `None` for a parameter the loss does not depend on.
pub fn gradients<M: Module>(module: &M, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
    walk(module, Take { gradients, found: Vec::new() }).found
}

struct Load<F, E> {
    names: std::vec::IntoIter<String>,
    fill: F,
    failed: Result<(), E>,
}

impl<E, F: FnMut(&str, &mut [f32]) -> Result<(), E>> ModuleMapper for Load<F, E> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.names.next().expect("mapping visits what visiting visits");
        if self.failed.is_err() {
            return param;
        }
        param.map(|tensor| {
            let tracked = tensor.device().is_autodiff();
            let old = plain(tensor);
            let mut values = vec![0.0; old.shape().num_elements()];
            self.failed = (self.fill)(&name, &mut values);
            let new = match self.failed {
                Ok(()) => Tensor::from_data(TensorData::new(values, old.dims()), (&old.device(), old.dtype())),
                Err(_) => old,
            };
            as_parameter(new, tracked)
        })
    }
}

/// Replaces each parameter's values by what `fill` writes, given its path.
///
/// # Errors
/// The first error of `fill`; that parameter and those after it keep their values.
pub fn load<M: Module, E>(module: M, fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>) -> (M, Result<(), E>) {
    let mut load = Load { names: names(&module).into_iter(), fill, failed: Ok(()) };
    let module = module.map(&mut load);
    (module, load.failed)
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
pub struct Group {
    /// Whether weight decay applies.
    pub decay: bool,
    /// Smallest and largest value; values are projected into it after each update.
    pub range: Option<[f64; 2]>,
}

/// What modules say of their parameters. Where nothing is said, matrices are decayed, vectors are not, and nothing has a
/// range: the convention of GPT-NeoX for weights, norms and biases.
#[derive(Clone, Debug, Default)]
pub struct Groups(BTreeMap<ParamId, Group>);

impl Groups {
    /// Says how `param` is updated.
    pub fn say<const D: usize>(&mut self, param: &Param<Tensor<D>>, group: Group) {
        self.0.insert(param.id, group);
    }

    fn of<const D: usize>(&self, param: &Param<Tensor<D>>) -> Group {
        self.0.get(&param.id).copied().unwrap_or(Group { decay: D > 1, range: None })
    }
}

/// A module that knows how its parameters are updated. One with parts of its own asks them in turn.
pub trait Describe {
    /// Says what differs from the convention of [`Groups`].
    fn describe(&self, groups: &mut Groups) {
        let _ = groups;
    }
}

struct Described {
    said: Groups,
    groups: Vec<Group>,
}

impl Visit for Described {
    fn visit<const D: usize>(&mut self, _path: &[String], param: &Param<Tensor<D>>) {
        self.groups.push(self.said.of(param));
    }
}

/// How every parameter is updated.
pub fn groups<M: Module + Describe>(module: &M) -> Vec<Group> {
    let mut said = Groups::default();
    module.describe(&mut said);
    walk(module, Described { said, groups: Vec::new() }).groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Init, Linear};
    use crate::plan::InitKind;
    use burn::tensor::{DType, Device};
    use rand::SeedableRng;

    fn layer() -> Linear {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
        let device = Device::flex().autodiff();
        let mut init = Init {
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
    fn what_a_module_says_replaces_the_convention() {
        struct Said<'a>(&'a Linear, Group);
        let (layer, group) = (layer(), Group { decay: true, range: Some([0.0, 1.0]) });
        let mut groups = Groups::default();
        let said = Said(&layer, group);
        let bias = said.0.bias.as_ref().expect("the layer has a bias");
        groups.say(bias, said.1);
        assert_eq!(groups.of(&layer.weight), Group { decay: true, range: None });
        assert_eq!(groups.of(bias), group);
        assert_eq!(Groups::default().of(bias), Group { decay: false, range: None });
    }
}
