//! Files of tensors (safetensors) that are larger than what is held of them: one tensor at a time, in both directions.
//!
//! Files are read at places, not mapped: one that another program cuts short is an error, not the end of this process.

use crate::error::{Error, Result};
use kerple_data::Sha256;
pub use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// Longest header: what the format's library takes.
const LONGEST_HEADER: u64 = 100_000_000;

/// Bytes at once where only a checksum is wanted.
const BLOCK: usize = 1 << 20;

/// An open file of which the header has been read and compared with its size.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: Mutex<File>,
    header: Metadata,
    /// Where the values begin.
    start: u64,
}

impl TensorFile {
    /// Opens a file whose header says what it holds, and no more or less than that.
    ///
    /// # Errors
    /// What cannot be read; a file that is cut short, or no file of tensors, with `hint`.
    pub fn open(path: &Path, hint: &str) -> Result<TensorFile> {
        let damaged = |message: String| Error::damaged(path, message, hint);
        let mut file = kerple_files::open(path).map_err(Error::io(path, "read"))?;
        let bytes = file.metadata().map_err(Error::io(path, "open"))?.len();
        let mut size = [0; 8];
        if bytes < 8 {
            return Err(damaged(format!("{bytes} bytes are no file of tensors")));
        }
        file.read_exact(&mut size).map_err(Error::io(path, "read"))?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER || size > bytes - 8 {
            let most = LONGEST_HEADER.min(bytes - 8);
            return Err(damaged(format!("its header is said to have {size} bytes, it can have {most} at most")));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(Error::io(path, "read"))?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("its header cannot be read: {error}")))?;
        let (start, wanted) = (8 + size, 8 + size + header.data_len() as u64);
        if wanted != bytes {
            return Err(damaged(format!("it has {bytes} bytes, its header describes {wanted}")));
        }
        Ok(TensorFile { path: path.to_owned(), file: Mutex::new(file), header, start })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, in the order of their values.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Type and shape of a tensor, where the file has it.
    pub fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.header.info(name).map(|info| (info.dtype, &info.shape[..]))
    }

    /// The bytes of a tensor, little endian, row by row; `None` where the file has none of this name.
    ///
    /// # Errors
    /// A file that cannot be read, or became shorter since it was opened.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        self.read_at(name, info.data_offsets.0, &mut bytes).map(|()| Some(bytes))
    }

    /// Fills `values` with a tensor of as many numbers of 32 bits, without holding them twice; whether the file has one.
    ///
    /// # Errors
    /// As of [`TensorFile::read`].
    pub fn read_f32(&self, name: &str, values: &mut [f32]) -> Result<bool> {
        let fits = |info: &&TensorInfo| {
            info.dtype == Dtype::F32 && info.data_offsets.1 - info.data_offsets.0 == size_of_val(values)
        };
        let Some(info) = self.header.info(name).filter(fits) else { return Ok(false) };
        self.read_at(name, info.data_offsets.0, bytemuck::cast_slice_mut(values))?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits().swap_bytes()));
        }
        Ok(true)
    }

    /// Bytes of a tensor, which begin at this place of the values.
    fn read_at(&self, name: &str, from: usize, bytes: &mut [u8]) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let read = file.seek(SeekFrom::Start(self.start + from as u64)).and_then(|_| file.read_exact(bytes));
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let message = format!("tensor `{name}` ends early: another program cut the file short");
                Error::damaged(&self.path, message, "leave the file alone while it is in use")
            }
            _ => Error::io(&self.path, "read")(error),
        })
    }
}

/// SHA-256 of a file, in hexadecimal, without holding it.
///
/// # Errors
/// A file that cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = kerple_files::open(path).map_err(Error::io(path, "read"))?;
    let (mut sum, mut block) = (Sha256::default(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).map_err(Error::io(path, "read"))? {
            0 => return Ok(sum.finish()),
            count => sum.add(&block[..count]),
        }
    }
}

/// A tensor that is about to be written as `f32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Writes and syncs a new file of `f32` tensors, sorted by name as the format's library sorts them, and returns its SHA-256.
/// `fill` is asked for the values of one slot, by its number, after the other.
///
/// # Errors
/// Names that are there twice, what the disk refuses, and the first error of `fill`; a part of the file may then be there.
pub fn write(path: &Path, slots: &[Slot], mut fill: impl FnMut(usize) -> Result<Vec<f32>>) -> Result<String> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|number| &slots[*number].name);
    let mut end = 0;
    let info = |number: &usize| {
        let Slot { name, shape } = &slots[*number];
        let from = end;
        end += 4 * shape.iter().product::<usize>();
        (name.clone(), TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (from, end) })
    };
    let infos = order.iter().map(info).collect();
    let header =
        Metadata::new(None, infos).map_err(|error| Error::damaged(path, error.to_string(), "this is a bug"))?;
    let mut header = serde_json::to_vec(&header).expect("a header is plain data");
    // values begin at a multiple of 8
    header.resize(header.len().next_multiple_of(8), b' ');
    let out = Summed { path, file: File::create(path).map_err(Error::io(path, "create"))?, sum: Sha256::default() };
    // while one tensor is summed and written, the next is made: no more than these two are held
    let (give, take) = sync_channel::<Vec<f32>>(0);
    thread::scope(|scope| {
        let writer = scope.spawn(move || out.write(&header, take));
        let make = || {
            for number in order {
                let values = fill(number)?;
                assert_eq!(values.len(), slots[number].shape.iter().product::<usize>(), "{}", slots[number].name);
                if give.send(values).is_err() {
                    break; // the writer says why
                }
            }
            Ok(())
        };
        let made = make();
        drop(give);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        made.and(written)
    })
}

/// A file that is summed as it is written.
struct Summed<'a> {
    path: &'a Path,
    file: File,
    sum: Sha256,
}

impl Summed<'_> {
    /// Writes and syncs everything; its SHA-256.
    fn write(mut self, header: &[u8], tensors: Receiver<Vec<f32>>) -> Result<String> {
        self.put(&(header.len() as u64).to_le_bytes())?;
        self.put(header)?;
        for values in tensors {
            self.put(bytemuck::cast_slice(&values))?;
        }
        self.file.sync_all().map_err(Error::io(self.path, "sync"))?;
        Ok(self.sum.finish())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        for block in bytes.chunks(BLOCK) {
            self.sum.add(block);
            self.file.write_all(block).map_err(Error::io(self.path, "write"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Vec<Slot> {
        [("b", vec![2, 3]), ("a", vec![5]), ("c", vec![])].map(|(name, shape)| Slot { name: name.into(), shape }).into()
    }

    fn values(number: usize) -> Vec<f32> {
        let count = slots()[number].shape.iter().product::<usize>();
        (0..count).map(|at| (10 * number + at) as f32).collect()
    }

    #[test]
    fn files_are_those_of_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let sum = write(&path, &slots(), |number| Ok(values(number))).unwrap();
        assert_eq!(sha256(&path).unwrap(), sum);
        let data = std::fs::read(&path).unwrap();
        let all: Vec<(Slot, Vec<f32>)> = slots().into_iter().enumerate().map(|(n, slot)| (slot, values(n))).collect();
        let views = all.iter().map(|(slot, values)| {
            let bytes = bytemuck::cast_slice(values);
            (&slot.name, safetensors::tensor::TensorView::new(Dtype::F32, slot.shape.clone(), bytes).unwrap())
        });
        assert_eq!(data, safetensors::serialize(views, None).unwrap());
        let file = TensorFile::open(&path, "").unwrap();
        assert_eq!(file.names(), ["a", "b", "c"]);
        assert_eq!(file.info("b"), Some((Dtype::F32, &[2, 3][..])));
        let read = file.read("b").unwrap().unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&read), values(0));
        assert_eq!(file.read("d").unwrap(), None);
        let mut held = vec![f32::NAN; 6];
        assert!(file.read_f32("b", &mut held).unwrap());
        assert_eq!(held, values(0));
        assert!(!file.read_f32("d", &mut held).unwrap() && !file.read_f32("b", &mut held[..5]).unwrap());
    }

    /// Whoever makes the values is asked no further, and the error is the first one.
    #[test]
    fn an_error_on_either_side_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut asked = 0;
        let error = write(&path, &slots(), |number| {
            asked += 1;
            if asked == 2 { Err(Error::refused("no more", "")) } else { Ok(values(number)) }
        });
        assert!(error.unwrap_err().to_string().contains("no more") && asked == 2);
        // a disk that is full
        #[cfg(target_os = "linux")]
        {
            let error = write(Path::new("/dev/full"), &slots(), |number| Ok(values(number))).unwrap_err();
            assert!(error.to_string().contains("/dev/full"), "{error}");
        }
    }

    /// Cut at every byte, and with sizes that are not so.
    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        write(&path, &slots(), |number| Ok(values(number))).unwrap();
        let data = std::fs::read(&path).unwrap();
        for len in 0..data.len() {
            std::fs::write(&path, &data[..len]).unwrap();
            assert!(matches!(TensorFile::open(&path, "again"), Err(Error::Damaged { .. })), "{len}");
        }
        std::fs::write(&path, [&data[..], &[0]].concat()).unwrap();
        assert!(TensorFile::open(&path, "again").unwrap_err().to_string().contains("its header describes"));
        std::fs::write(&path, [&u64::MAX.to_le_bytes(), &data[8..]].concat()).unwrap();
        assert!(TensorFile::open(&path, "again").unwrap_err().to_string().contains("18446744073709551615"));
    }
}
