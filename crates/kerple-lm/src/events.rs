//! TensorBoard event files: scalars only, written record by record.
//!
//! A record is `length u64, masked crc32c(length), data, masked crc32c(data)`, little endian; the data is a protobuf
//! `Event { wall_time = 1: double, step = 2: int64, file_version = 3: string, summary = 5 }`.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes_field(tag: u8, data: &[u8], out: &mut Vec<u8>) {
    out.push(tag << 3 | 2);
    varint(data.len() as u64, out);
    out.extend(data);
}

fn masked_crc(data: &[u8]) -> [u8; 4] {
    (crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes()
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), event, &masked_crc(event)].concat()
}

fn event(seconds: f64, step: u64) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(seconds.to_le_bytes());
    out.push(2 << 3);
    varint(step, &mut out);
    out
}

fn scalar_event(seconds: f64, step: u64, tag: &str, value: f32) -> Vec<u8> {
    let (mut entry, mut summary, mut out) = (Vec::new(), Vec::new(), event(seconds, step));
    bytes_field(1, tag.as_bytes(), &mut entry);
    entry.push(2 << 3 | 5);
    entry.extend(value.to_le_bytes());
    bytes_field(1, &entry, &mut summary);
    bytes_field(5, &summary, &mut out);
    out
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl EventFile {
    /// A new file in `folder` for a sitting that starts at `step`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn create(folder: &Path, step: u64) -> Result<EventFile> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        let path = folder.join(format!("events.out.tfevents.{:010}.{step}.kerple", now() as u64));
        let file = File::create(&path).map_err(Error::io(&path, "create"))?;
        let mut events = EventFile { path, file };
        let mut version = event(now(), 0);
        bytes_field(3, b"brain.Event:2", &mut version);
        events.write(&version)?;
        Ok(events)
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&record(event)).map_err(Error::io(&self.path, "append to"))
    }

    /// Appends one number.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f64) -> Result<()> {
        self.write(&scalar_event(now(), step, tag, value as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_carry_their_checksums() {
        // the standard check value of CRC-32C
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let data = scalar_event(1.5, 300, "loss", 2.0);
        let framed = record(&data);
        assert_eq!(u64::from_le_bytes(framed[..8].try_into().unwrap()), data.len() as u64);
        assert_eq!(framed[8..12], masked_crc(&framed[..8]));
        assert_eq!(framed[framed.len() - 4..], masked_crc(&data));
        // step 300 as a varint behind its tag, then the summary with tag and value
        assert_eq!(data[9..12], [2 << 3, 0xac, 0x02]);
        assert_eq!(data[12..], [&[5 << 3 | 2, 13, 1 << 3 | 2, 11, 1 << 3 | 2, 4][..], b"loss", &[2 << 3 | 5, 0, 0, 0, 64]].concat());
    }
}
