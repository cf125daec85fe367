//! Walking the parameters of a module: names, values, gradients, updates in place.
//!
//! The order is that of the module's fields and is the same in every function here.

use crate::array::Array;
use burn::backend::{Flex, flex::FlexTensor};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

/// A parameter with its path in the module, e.g. `blocks.0.attention.qkv.weight`.
#[derive(Clone, Debug)]
pub struct Named {
    /// Path, components joined by dots.
    pub name: String,
    /// The values; shared with the module until it changes.
    pub array: Array,
}

fn array<const D: usize>(tensor: Tensor<D>) -> Array {
    let inner = if tensor.device().is_autodiff() { tensor.inner() } else { tensor };
    Array::new(inner.try_into_primitive::<Flex>().expect("parameters live on the flex backend"))
}

#[derive(Default)]
struct Collect {
    path: Vec<String>,
    found: Vec<Named>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push(Named { name: self.path.join("."), array: array(param.val()) });
    }
}

/// Every parameter with its path and values.
pub fn collect<M: Module>(module: &M) -> Vec<Named> {
    let mut visitor = Collect::default();
    module.visit(&mut visitor);
    visitor.found
}

struct Take<'a> {
    gradients: &'a mut Gradients,
    found: Vec<Option<Array>>,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push(param.val().grad_remove(self.gradients).map(array));
    }
}

/// Takes each parameter's gradient out of `gradients`; `None` for a parameter the loss does not depend on.
pub fn gradients<M: Module>(module: &M, gradients: &mut Gradients) -> Vec<Option<Array>> {
    let mut visitor = Take { gradients, found: Vec::new() };
    module.visit(&mut visitor);
    visitor.found
}

struct Update<F> {
    index: usize,
    change: F,
}

impl<F: FnMut(usize, &mut [f32])> ModuleMapper for Update<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.index;
        self.index += 1;
        param.map(|tensor| {
            let tracked = tensor.device().is_autodiff();
            let inner = if tracked { tensor.inner() } else { tensor };
            let mut values: FlexTensor =
                inner.try_into_primitive::<Flex>().expect("parameters live on the flex backend").to_contiguous();
            (self.change)(index, values.storage_mut::<f32>());
            let changed = Tensor::from_primitive::<Flex>(values);
            if tracked { Tensor::from_inner(changed).require_grad() } else { changed }
        })
    }
}

/// Changes each parameter's values in place, without a copy when nothing else shares them.
///
/// `change` is given the parameter's index and its values.
pub fn update<M: Module>(module: M, change: impl FnMut(usize, &mut [f32])) -> M {
    module.map(&mut Update { index: 0, change })
}

struct Detach;

impl ModuleMapper for Detach {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| if tensor.device().is_autodiff() { tensor.inner() } else { tensor })
    }
}

/// The module for inference: the same values, shared, outside autodiff.
pub fn without_autodiff<M: Module>(module: &M) -> M {
    module.clone().map(&mut Detach)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Linear;
    use burn::tensor::Device;
    use rand::SeedableRng;

    #[test]
    fn parameters_are_named_and_changed_in_place() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
        let layer = Linear::new([3, 2], 1.0, &mut rng, &Device::flex().autodiff());
        let before = collect(&layer);
        assert_eq!(before.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["weight", "bias"]);
        assert_eq!(before[0].array.shape(), [3, 2]);
        let address = before[0].array.slice::<f32>().as_ptr();
        drop(before);
        let layer = update(layer, |index, values| values.iter_mut().for_each(|v| *v = index as f32 + 5.0));
        let after = collect(&layer);
        assert!(after[0].array.slice::<f32>().iter().all(|v| *v == 5.0));
        assert!(after[1].array.slice::<f32>().iter().all(|v| *v == 6.0));
        assert_eq!(after[0].array.slice::<f32>().as_ptr(), address, "the buffer was copied");

        let loss = layer.composed(Tensor::ones([1, 4, 3], &Device::flex().autodiff())).sum();
        let found = gradients(&layer, &mut loss.backward());
        assert_eq!(found[0].as_ref().unwrap().slice::<f32>(), [4.0; 6]);
        assert_eq!(found[1].as_ref().unwrap().slice::<f32>(), [4.0; 2]);
    }
}
