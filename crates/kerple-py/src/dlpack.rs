//! Reads a tensor's properties from DLPack's table of C functions, in a tenth of the time that its
//! methods take.
//!
//! A type with the table names it `__dlpack_c_exchange_api__`; PyTorch has it from 2.10 on. Version
//! 1 is supported: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// The version whose table this is.
const MAJOR: u32 = 1;
const CPU: i32 = 1;
/// Codes of a type of numbers.
const INT: u8 = 0;
const FLOAT: u8 = 2;
/// Most tensor types whose tables are cached.
const MOST_TYPES: usize = 16;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlpackTable {
    major: u32,
    minor: u32,
    previous: *const c_void,
    /// Allocator, and tensors that are handed over, to and from: not called here.
    others: [Option<unsafe extern "C" fn()>; 3],
    describe: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
}

type DescribeTensor = unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int;

/// The properties of an array.
pub struct ArrayInfo {
    /// Of the first element.
    pub address: usize,
    /// Sizes.
    pub shape: Vec<i64>,
    /// In elements.
    pub strides: Vec<i64>,
    /// Bytes of an element.
    pub size: usize,
    /// Whether elements are floating-point numbers, and not whole ones.
    pub floating: bool,
}

/// Types and their functions. The cache holds the types, so that no other type gets the address of
/// one of them.
static TYPES: Mutex<Vec<(Py<PyType>, Option<DescribeTensor>)>> = Mutex::new(Vec::new());

/// The function of the table of this type, where it has one.
fn describe(of: &Bound<PyType>) -> Option<DescribeTensor> {
    let known = |types: &[(Py<PyType>, Option<DescribeTensor>)]| {
        types.iter().find(|(known, _)| known.as_ptr() == of.as_ptr()).map(|(_, found)| *found)
    };
    if let Some(found) = known(&TYPES.lock().unwrap_or_else(PoisonError::into_inner)) {
        return found;
    }
    let found = look_up(of);
    let mut types = TYPES.lock().unwrap_or_else(PoisonError::into_inner);
    if known(&types).is_none() && types.len() < MOST_TYPES {
        types.push((of.clone().unbind(), found));
    }
    found
}

fn look_up(of: &Bound<PyType>) -> Option<DescribeTensor> {
    let capsule = of.getattr(intern!(of.py(), "__dlpack_c_exchange_api__")).ok()?.cast_into::<PyCapsule>().ok()?;
    let table = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.cast::<DlpackTable>().as_ptr();
    // SAFETY: a capsule of this name holds such a table, which stays for as long as the process does; the version stands at the same
    // place in all, and the rest is read only if it is ours.
    unsafe { if (*table).major == MAJOR { (*table).describe } else { None } }
}

/// The properties of this object, if it provides them and its numbers are in the CPU's memory.
pub fn array_info(object: &Bound<PyAny>) -> Option<ArrayInfo> {
    let describe = describe(&object.get_type())?;
    let mut tensor = std::mem::MaybeUninit::<DlTensor>::uninit();
    // SAFETY: the interpreter's lock is held, the object is of the type whose table this is, and there is room for the answer.
    let failed = unsafe { describe(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0;
    if failed {
        drop(PyErr::take(object.py()));
        return None;
    }
    // SAFETY: a function that did not fail has written all of it.
    let tensor = unsafe { tensor.assume_init() };
    let DlTensor { data, device_type, ndim, code, bits, lanes, shape, strides, byte_offset, .. } = tensor;
    let known = device_type == CPU && lanes == 1 && bits.is_multiple_of(8) && matches!(code, INT | FLOAT);
    let ndim = usize::try_from(ndim).ok()?;
    if !known || (ndim > 0 && (shape.is_null() || strides.is_null())) {
        return None;
    }
    let [shape, strides] = [shape, strides].map(|values| match ndim {
        0 => Vec::new(),
        // SAFETY: shape and strides are the object's, `ndim` numbers each, and it lives through this call.
        _ => unsafe { std::slice::from_raw_parts(values, ndim) }.to_vec(),
    });
    let address = (data as usize).wrapping_add(byte_offset as usize);
    Some(ArrayInfo { address, shape, strides, size: usize::from(bits / 8), floating: code == FLOAT })
}
