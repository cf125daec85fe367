//! Contiguous CPU arrays: the view that a custom operation has of a tensor.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Element, TensorData, bf16};
use bytemuck::Pod;
use kerple_core::ops::kept::KeptSlice;

/// A contiguous array of the flex backend; cloning shares the data.
#[derive(Clone, Debug)]
pub struct HostArray(FlexTensor);

impl HostArray {
    /// The array of a tensor, copied only when its layout is strided.
    pub fn new(tensor: FlexTensor) -> HostArray {
        HostArray(tensor.to_contiguous())
    }

    /// An array that owns `values`.
    ///
    /// # Panics
    /// When the shape does not hold as many values.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: &[usize]) -> HostArray {
        HostArray(FlexTensor::from_data(TensorData::new(values, shape.to_vec())))
    }

    /// An array of the values that were read from a device.
    pub fn from_data(data: TensorData) -> HostArray {
        HostArray(FlexTensor::from_data(data))
    }

    /// The values in row-major order.
    ///
    /// # Panics
    /// When the array holds another type.
    pub fn slice<T: Element + Pod>(&self) -> &[T] {
        let found = self.0.dtype();
        self.0.as_slice().unwrap_or_else(|| panic!("expected an array of {:?}, got {found:?}", T::dtype()))
    }

    /// The same to change them: a copy where others share them.
    ///
    /// # Panics
    /// As [`HostArray::slice`].
    pub fn slice_mut<T: Element + Pod>(&mut self) -> &mut [T] {
        let (start, end) = self.0.layout().contiguous_offsets().expect("the array is contiguous");
        &mut self.0.storage_mut()[start..end]
    }

    /// The values in row-major order, which may be held as `bf16`.
    ///
    /// # Panics
    /// When the array holds yet another type.
    pub fn kept<T: Element + Pod>(&self) -> KeptSlice<'_, T> {
        match self.dtype() {
            DType::BF16 => KeptSlice::Bf16(bytemuck::cast_slice(self.slice::<bf16>())),
            _ => KeptSlice::Exact(self.slice()),
        }
    }

    /// Length of each axis.
    pub fn shape(&self) -> &[usize] {
        self.0.layout().shape()
    }

    /// The same values in another shape.
    ///
    /// # Panics
    /// When the shape does not hold as many values.
    pub fn reshape(&self, shape: &[usize]) -> HostArray {
        HostArray(self.0.reshape(shape.to_vec().into()))
    }

    /// Type of the values.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// The tensor of the flex backend.
    pub fn into_tensor(self) -> FlexTensor {
        self.0
    }
}
