//! TensorBoard event files: scalars only, written record by record.
//!
//! | tags | of | by |
//! |---|---|---|
//! | `loss/train`, `loss/validation` | losses, nats per token | step |
//! | `opt/learning_rate`, `opt/grad_norm`, `opt/seconds_per_step`, `opt/waiting` | updates | step |
//! | `kernel/NAME/NUMBER` | learned parameters of the encoding, where there are few | step |
//! | `eval/perplexity`, `eval/bits_per_byte`, `eval/accuracy` | one evaluation, in a folder of its own | length |
//!
//! A record is `length u64, masked crc32c(length), data, masked crc32c(data)`, little endian; the data is a protobuf
//! `Event { wall_time = 1: double, step = 2: int64, file_version = 3: string, summary = 5 }`.

use crate::error::{Error, Result};
use kerple_run::{EvaluationRow, MetricsRow};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Parameters of more numbers are not drawn: a page of hundreds of curves shows nothing.
const MOST_CURVES: usize = 64;

/// The folder of one evaluation, by all that its numbers have in common: curves over the length lie over each other.
pub fn of_evaluation(row: &EvaluationRow) -> String {
    let window = row.window.map_or(String::new(), |window| format!("-window{window}"));
    let scaling = row.rope_scaling.as_ref().map_or(String::new(), |scaling| format!("-{scaling}"));
    let numerics = row.numerics().filter(|numerics| numerics.chosen() != ("f32", "cpu"));
    let numerics = numerics.map_or(String::new(), |by| format!("-{}-{}", by.precision, by.device));
    let documents = if row.documents.is_joined() { String::new() } else { format!("-{}", row.documents) };
    let name = format!("{}-{}{documents}{window}{scaling}{numerics}-step{}", row.split, row.protocol, row.step);
    format!("eval/{}", name.replace(|letter: char| !(letter.is_ascii_alphanumeric() || "-_.".contains(letter)), "-"))
}

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: Option<File>,
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

/// Length and step of the whole record that `data` begins with; `None` where it is cut or damaged.
fn parse(data: &[u8]) -> Option<(usize, u64)> {
    let length = usize::try_from(u64::from_le_bytes(*data.first_chunk()?)).ok()?;
    let end = length.checked_add(12)?;
    let event = data.get(12..end)?;
    let sound = data[8..12] == masked_crc(&data[..8]) && *data.get(end..end.checked_add(4)?)? == masked_crc(event);
    // wall time behind one byte, then the step as a varint behind another
    let varint = event.get(10..).filter(|_| sound)?;
    let bytes = varint.iter().position(|byte| byte & 0x80 == 0)?;
    let step = varint[..=bytes].iter().rev().fold(0, |step: u64, byte| step << 7 | u64::from(byte & 0x7f));
    Some((end + 4, step))
}

/// Cuts the files of earlier sessions off before the first event of a step after `step`, which will come again, and before
/// anything a crash has left incomplete.
fn forget_after(folder: &Path, step: u64) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let path = entry.map_err(Error::io(folder, "list"))?.path();
        if path.extension().is_none_or(|extension| extension != "kerple") {
            continue;
        }
        let data = kerple_run::files::read(&path).map_err(Error::io(&path, "read"))?;
        let mut kept = 0;
        while let Some((length, found)) = parse(&data[kept..])
            && found <= step
        {
            kept += length;
        }
        if kept < data.len() {
            let file = File::options().write(true).open(&path).map_err(Error::io(&path, "open"))?;
            file.set_len(kept as u64).map_err(Error::io(&path, "shorten"))?;
        }
    }
    Ok(())
}

impl EventFile {
    /// A new file in `folder` for a session that starts after `step` updates, created with its
    /// first number; later steps in the files of earlier sessions are removed.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn create(folder: &Path, step: u64) -> Result<EventFile> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        forget_after(folder, step)?;
        let path = folder.join(format!("events.out.tfevents.{:010}.{step}.kerple", now() as u64));
        Ok(EventFile { path, file: None })
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                // two sessions of one second from one step share a file
                let mut file = kerple_run::files::append(&self.path).map_err(Error::io(&self.path, "create"))?;
                let mut version = self::event(now(), 0);
                bytes_field(3, b"brain.Event:2", &mut version);
                file.write_all(&record(&version)).map_err(Error::io(&self.path, "append to"))?;
                none.insert(file)
            }
        };
        file.write_all(&record(event)).map_err(Error::io(&self.path, "append to"))
    }

    /// A new file in `folder` next to existing files.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn create_in(folder: &Path) -> Result<EventFile> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        let path = folder.join(format!("events.out.tfevents.{:010}.kerple", now() as u64));
        Ok(EventFile { path, file: None })
    }

    /// Appends the numbers of a logged step.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn metrics(&mut self, row: &MetricsRow) -> Result<()> {
        let step = row.step;
        self.scalar(step, "loss/train", row.loss)?;
        if let Some(valid) = row.val_loss {
            self.scalar(step, "loss/validation", valid)?;
        }
        if let Some(score) = row.val_score {
            self.scalar(step, "score/validation", score)?;
        }
        self.scalar(step, "opt/learning_rate", row.learning_rate)?;
        self.scalar(step, "opt/grad_norm", row.grad_norm)?;
        self.scalar(step, "opt/seconds_per_step", row.step_seconds)?;
        if let Some(waiting) = row.comm_wait_fraction {
            self.scalar(step, "opt/comm_wait_fraction", waiting)?;
        }
        for (name, values) in row.encoding_params.iter().filter(|(_, values)| values.len() <= MOST_CURVES) {
            for (number, value) in values.iter().enumerate() {
                self.scalar(step, &format!("kernel/{name}/{number}"), *value)?;
            }
        }
        Ok(())
    }

    /// Appends the numbers of an evaluated length.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn evaluation(&mut self, row: &EvaluationRow) -> Result<()> {
        let accuracy = row.task.as_ref().map(|task| task.score());
        let found =
            [("perplexity", Some(row.perplexity)), ("bits_per_byte", row.bits_per_byte), ("accuracy", accuracy)];
        for (name, value) in found {
            value.map_or(Ok(()), |value| self.scalar(row.eval_len, &format!("eval/{name}"), value))?;
        }
        Ok(())
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
        assert_eq!(
            data[12..],
            [&[5 << 3 | 2, 13, 1 << 3 | 2, 11, 1 << 3 | 2, 4][..], b"loss", &[2 << 3 | 5, 0, 0, 0, 64]].concat()
        );
    }

    /// Tags in the order in which they were written.
    fn tags(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let data = std::fs::read(entry.unwrap().path()).unwrap();
            let mut at = 0;
            while let Some((length, _)) = parse(&data[at..]) {
                // the tag is the longest text with a slash; the 8 bytes of a number may look like a shorter one
                let text = String::from_utf8_lossy(&data[at..at + length]).into_owned();
                let is_tag = |letter: char| letter.is_ascii_alphanumeric() || "/_.".contains(letter);
                let parts = text.split(|letter| !is_tag(letter)).filter(|part| part.contains('/') && part.len() > 8);
                found.extend(parts.max_by_key(|part| part.len()).map(str::to_owned));
                at += length;
            }
        }
        found
    }

    #[test]
    fn tags_are_in_groups() {
        let folder = tempfile::tempdir().unwrap();
        let row: MetricsRow = serde_json::from_str(
            r#"{"step":1,"loss":1.0,"learning_rate":0.5,"grad_norm":1.0,"tokens":3,"seconds":1.0,"step_seconds":1.0,
                "val_loss":2.0,"val_score":0.5,"encoding_params":{"layer0.r1":[1.0,2.0]}}"#,
        )
        .unwrap();
        let mut many = row.clone();
        many.step = 2;
        (many.val_loss, many.val_score) = (None, None);
        many.encoding_params.insert("rows".to_owned(), vec![1.0; MOST_CURVES + 1]);
        let mut file = EventFile::create(folder.path(), 0).unwrap();
        file.metrics(&row).unwrap();
        file.metrics(&many).unwrap();
        let opt = ["opt/learning_rate", "opt/grad_norm", "opt/seconds_per_step"];
        let kernel = ["kernel/layer0.r1/0", "kernel/layer0.r1/1"];
        let first = [&["loss/train", "loss/validation", "score/validation"][..], &opt, &kernel].concat();
        assert_eq!(tags(folder.path()), [first, [&["loss/train"][..], &opt, &kernel].concat()].concat());
    }

    #[test]
    fn an_evaluation_has_a_folder_and_lengths_for_steps() {
        let folder = tempfile::tempdir().unwrap();
        let row: EvaluationRow = serde_json::from_str(
            r#"{"label":"alibi","seed":1,"train_len":64,"eval_len":128,"protocol":"last:32","split":"test","step":9,"window":5,
                "text":{"checksum":"ab","segment_len":128,"n_segments":2,"seed":1},
                "n_windows":2,"tokens":256,"nll":1.5,"perplexity":4.4816,"bits_per_byte":2.0,"seconds":0.5}"#,
        )
        .unwrap();
        assert_eq!(of_evaluation(&row), "eval/test-last-32-window5-step9");
        let separate = EvaluationRow { documents: kerple_run::DocumentMask::Separate, ..row.clone() };
        assert_eq!(of_evaluation(&separate), "eval/test-last-32-separate-window5-step9");
        let strange = EvaluationRow { rope_scaling: Some("{ a = 1 }../b".into()), window: None, ..row.clone() };
        assert_eq!(of_evaluation(&strange), "eval/test-last-32---a---1--..-b-step9", "one folder within another");
        for length in [256, 128] {
            EventFile::create_in(folder.path())
                .unwrap()
                .evaluation(&EvaluationRow { eval_len: length, ..row.clone() })
                .unwrap();
        }
        assert_eq!(steps(folder.path()), [128, 128, 256, 256], "none is taken back");
        assert_eq!(tags(folder.path())[..2], ["eval/perplexity", "eval/bits_per_byte"]);
    }

    fn steps(folder: &Path) -> Vec<u64> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let data = std::fs::read(entry.unwrap().path()).unwrap();
            let mut at = 0;
            while let Some((length, step)) = parse(&data[at..]) {
                // a record of step 0 names the format
                found.extend((step > 0).then_some(step));
                at += length;
            }
            assert_eq!(at, data.len(), "something is left after the last whole record");
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn steps_do_not_repeat_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let mut killed = EventFile::create(folder.path(), 0).unwrap();
        for step in [1, 2, 300, 400] {
            killed.scalar(step, "loss", 1.0).unwrap();
        }
        // a kill in the middle of a record
        killed.file.unwrap().write_all(&record(&scalar_event(0.0, 2, "loss", 1.0))[..20]).unwrap();
        let mut resumed = EventFile::create(folder.path(), 300).unwrap();
        assert_eq!(steps(folder.path()), [1, 2, 300]);
        resumed.scalar(400, "loss", 1.0).unwrap();
        resumed.scalar(500, "loss", 1.0).unwrap();
        assert_eq!(steps(folder.path()), [1, 2, 300, 400, 500]);
    }
}
