//! Arrays that Python owns: tensors and numpy arrays, read and written in place.
//!
//! An object needs the methods of a tensor: `data_ptr()`, `shape`, `stride()` in elements,
//! `element_size()`, `is_floating_point()`; `kerple._array.PythonArray` provides them for numpy. Tensors
//! with DLPack's function table are faster to read. The objects are arguments of a call and outlive
//! it.

use crate::dlpack::{self, ArrayInfo};
use kerple_core::Number;
use kerple_core::attention::{Strides, View, ViewMut};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

/// The number types that Python and Rust exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
    /// 64-bit integers.
    I64,
}

/// An argument that may be None.
pub type OptionalObject<'py> = Option<Bound<'py, PyAny>>;

/// A Rust type of a [`DType`].
pub trait Element: Copy + 'static {
    /// Its kind.
    const KIND: DType;
}

impl Element for f32 {
    const KIND: DType = DType::F32;
}

impl Element for f64 {
    const KIND: DType = DType::F64;
}

impl Element for i64 {
    const KIND: DType = DType::I64;
}

/// An array owned by Python, for the duration of a call.
#[derive(Debug)]
pub struct PythonArray {
    name: &'static str,
    address: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
    kind: DType,
    /// From the first element to the last, both included.
    extent: usize,
}

impl PythonArray {
    /// Reads the argument of this name.
    pub fn of(name: &'static str, object: &Bound<PyAny>) -> PyResult<PythonArray> {
        let ArrayInfo { address, shape, strides, size, floating } =
            dlpack::array_info(object).map_or_else(|| info_by_methods(object), Ok)?;
        let kind = match (floating, size) {
            (true, 4) => DType::F32,
            (true, 8) => DType::F64,
            (false, 8) => DType::I64,
            _ => {
                let dtype = object.getattr(intern!(object.py(), "dtype"))?;
                return Err(PyTypeError::new_err(format!(
                    "{name}: dtype {dtype} is not supported; use float32 or float64"
                )));
            }
        };
        let sizes =
            |values: &[i64]| values.iter().map(|value| usize::try_from(*value)).collect::<Result<Vec<usize>, _>>();
        let Ok(shape) = sizes(&shape) else {
            return Err(PyValueError::new_err(format!("{name}: shape {shape:?} has negative sizes")));
        };
        let Ok(strides) = sizes(&strides) else {
            return Err(PyValueError::new_err(format!(
                "{name}: negative strides {strides:?} are not supported; use a copy"
            )));
        };
        let extent = extent(&shape, &strides).filter(|extent| *extent <= isize::MAX as usize / size);
        let (Some(extent), true) = (extent, shape.len() == strides.len()) else {
            return Err(PyValueError::new_err(format!(
                "{name}: shape {shape:?} with strides {strides:?} is too large"
            )));
        };
        if extent > 0 && (address == 0 || !address.is_multiple_of(size)) {
            return Err(PyValueError::new_err(format!(
                "{name}: numbers of {size} bytes are misaligned at address {address:#x}"
            )));
        }
        Ok(PythonArray { name, address, shape, strides, kind, extent })
    }

    /// The same for an argument that may be None.
    pub fn some(name: &'static str, object: Option<&Bound<PyAny>>) -> PyResult<Option<PythonArray>> {
        object.map(|object| PythonArray::of(name, object)).transpose()
    }

    /// Its argument.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its number type.
    pub fn kind(&self) -> DType {
        self.kind
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its shape, of the expected rank.
    pub fn sizes<const N: usize>(&self, letters: &str) -> PyResult<[usize; N]> {
        self.shape.as_slice().try_into().map_err(|_| {
            let (name, shape) = (self.name, &self.shape);
            PyValueError::new_err(format!("{name}: expected [{letters}], got shape {shape:?}"))
        })
    }

    /// Refuses another number type.
    pub fn expect_kind(&self, kind: DType) -> PyResult<()> {
        if self.kind == kind {
            return Ok(());
        }
        Err(PyTypeError::new_err(format!("{}: dtype is {:?}; expected {kind:?}", self.name, self.kind)))
    }

    /// Refuses another shape.
    pub fn expect_shape(&self, letters: &str, shape: &[usize]) -> PyResult<()> {
        if self.shape == shape {
            return Ok(());
        }
        let (name, got) = (self.name, &self.shape);
        Err(PyValueError::new_err(format!("{name}: expected [{letters}] = {shape:?}, got {got:?}")))
    }

    fn is_dense(&self) -> bool {
        let mut step = 1;
        self.extent == 0
            || self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
                let fits = *size == 1 || *stride == step;
                step *= size;
                fits
            })
    }

    /// All numbers in their order.
    pub fn values<T: Element>(&self) -> PyResult<&[T]> {
        self.expect_kind(T::KIND)?;
        if !self.is_dense() {
            return Err(PyValueError::new_err(format!("{}: not contiguous; expected a contiguous array", self.name)));
        }
        Ok(self.all())
    }

    /// Everything from the first element to the last.
    fn all<T: Element>(&self) -> &[T] {
        assert_eq!(self.kind, T::KIND, "{}: the type was checked", self.name);
        if self.extent == 0 {
            return &[];
        }
        // SAFETY: the object says that it has numbers of this type from `address` on, as far as its strides reach, and lives
        // as long as this array; the address is aligned, not 0, and the extent in bytes fits an isize. That nobody
        // writes to a tensor while it is read is what torch and numpy ask of their callers too.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.extent) }
    }

    /// All numbers of an array that only this call uses, to be written.
    ///
    /// # Safety
    /// No other array of the call shares memory with this one, and this is called once.
    #[allow(clippy::mut_from_ref, reason = "the memory is Python's, and the caller answers for aliasing")]
    pub unsafe fn values_mut<T: Element>(&self) -> PyResult<&mut [T]> {
        self.values::<T>()?;
        // SAFETY: as below.
        Ok(unsafe { self.all_mut() })
    }

    /// # Safety
    /// As for [`PythonArray::values_mut`].
    #[allow(clippy::mut_from_ref, reason = "as above")]
    unsafe fn all_mut<T: Element>(&self) -> &mut [T] {
        assert_eq!(self.kind, T::KIND, "{}: the type was checked", self.name);
        if self.extent == 0 {
            return &mut [];
        }
        // SAFETY: as in `all`; the caller answers for aliasing.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, self.extent) }
    }

    fn rows(&self) -> PyResult<Strides> {
        let [_, _, _, head_dim] = self.sizes("B, H, L, D")?;
        if head_dim > 1 && self.extent > 0 && self.strides[3] != 1 {
            let message = format!("{}: features must be contiguous; their stride is {}", self.name, self.strides[3]);
            return Err(PyValueError::new_err(message));
        }
        Ok(Strides { batch: self.strides[0], head: self.strides[1], row: self.strides[2] })
    }

    /// As `[B, H, L, D]`.
    pub fn view<T: Element + Number>(&self) -> PyResult<View<'_, T>> {
        self.expect_kind(T::KIND)?;
        Ok(View { strides: self.rows()?, data: self.all() })
    }

    /// As `[B, H, L, D]` to be written.
    ///
    /// # Safety
    /// As for [`PythonArray::values_mut`].
    pub unsafe fn room<T: Element + Number>(&self) -> PyResult<WritableArray<'_, T>> {
        self.expect_kind(T::KIND)?;
        let strides = self.rows()?;
        if self.extent > 0 && self.shape.iter().zip(&self.strides).any(|(size, stride)| *size > 1 && *stride == 0) {
            return Err(PyValueError::new_err(format!(
                "{}: elements share memory, so they cannot be written",
                self.name
            )));
        }
        // SAFETY: the caller's.
        Ok(WritableArray { data: unsafe { self.all_mut() }, strides })
    }
}

/// A `[B, H, L, D]` array to be written, whole or from some row on.
pub struct WritableArray<'a, T> {
    /// From the first element to the last.
    pub data: &'a mut [T],
    /// Where the neighbours are.
    pub strides: Strides,
}

impl<T> WritableArray<'_, T> {
    /// From a row of a sequence on, in every head.
    pub fn from(&mut self, batch: usize, row: usize) -> ViewMut<'_, T> {
        let from = (batch * self.strides.batch + row * self.strides.row).min(self.data.len());
        ViewMut::new(&mut self.data[from..], self.strides)
    }
}

/// The same part of an array to read.
pub fn part<'a, T>(view: View<'a, T>, batch: usize, row: usize) -> View<'a, T> {
    let from = (batch * view.strides.batch + row * view.strides.row).min(view.data.len());
    View { data: &view.data[from..], strides: view.strides }
}

/// Reads an object through the methods of a tensor.
fn info_by_methods(object: &Bound<PyAny>) -> PyResult<ArrayInfo> {
    let py = object.py();
    Ok(ArrayInfo {
        address: object.call_method0(intern!(py, "data_ptr"))?.extract()?,
        shape: object.getattr(intern!(py, "shape"))?.extract()?,
        strides: object.call_method0(intern!(py, "stride"))?.extract()?,
        size: object.call_method0(intern!(py, "element_size"))?.extract()?,
        floating: object.call_method0(intern!(py, "is_floating_point"))?.extract()?,
    })
}

/// Elements from the first to the last, both included; `None` if that cannot be counted.
fn extent(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .zip(strides)
        .try_fold(1usize, |extent, (size, stride)| extent.checked_add((size - 1).checked_mul(*stride)?))
}
