//! Checks the schema of a Parquet file before the library trusts it.
//!
//! A schema is a list of elements; each states how many of the following elements are its children.
//! The library allocates memory for the claimed number, and stack for the claimed nesting. The list
//! uses Thrift's compact protocol: a field has its type, the difference of its number to the
//! previous one, and its value.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// Groups within groups; columns of text are not nested at all.
const DEEPEST: usize = 100;

/// How deep values of Thrift lie in each other, at most.
const DEEPEST_VALUE: usize = 32;

/// Refuses a file whose schema claims more children than it has elements. What is no footer at all is left to the library.
pub(super) fn check(file: &mut File) -> std::result::Result<(), String> {
    let Some(footer) = read(file).map_err(|error| error.to_string())? else { return Ok(()) };
    let children = Thrift(&footer).children().ok_or("the footer is damaged")?;
    let mut open = vec![1];
    for (at, claimed) in children.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        let Some(left) = open.last_mut() else { return Err(format!("element {at} of the schema has no parent")) };
        *left -= 1;
        if *claimed > children.len() as u64 {
            return Err(format!(
                "element {at} of the schema states {claimed} children, but the schema has {} elements",
                children.len()
            ));
        }
        if *claimed > 0 {
            open.push(*claimed);
        }
        if open.len() > DEEPEST {
            return Err(format!("the schema has more than {DEEPEST} nested groups"));
        }
    }
    match open.iter().sum::<u64>() {
        0 => Ok(()),
        missing => Err(format!("the schema states {missing} more elements than it has")),
    }
}

/// The bytes of the footer, where the end of the file says there is one.
fn read(file: &mut File) -> std::io::Result<Option<Vec<u8>>> {
    let size = file.seek(SeekFrom::End(0))?;
    let Some(end) = size.checked_sub(8) else { return Ok(None) };
    let (mut len, mut magic) = ([0; 4], [0; 4]);
    file.seek(SeekFrom::Start(end))?;
    file.read_exact(&mut len)?;
    file.read_exact(&mut magic)?;
    let len = u64::from(u32::from_le_bytes(len));
    let start = end.checked_sub(len).filter(|_| &magic == b"PAR1");
    let footer = match start {
        Some(start) => {
            let mut footer = vec![0; len as usize];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(&mut footer)?;
            Some(footer)
        }
        None => None,
    };
    file.rewind()?;
    Ok(footer)
}

/// What is left of some bytes of Thrift.
struct Thrift<'f>(&'f [u8]);

const I32: u8 = 5;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

impl Thrift<'_> {
    /// How many children each element of the schema claims; `None` where the bytes are no metadata of a file.
    fn children(&mut self) -> Option<Vec<u64>> {
        let (mut number, mut found) = (0, Vec::new());
        while let Some(kind) = self.field(&mut number)? {
            if (number, kind) != (2, LIST) {
                self.skip(kind, 0)?;
                continue;
            }
            let (count, STRUCT) = self.list()? else { return None };
            for _ in 0..count {
                found.push(self.claimed()?);
            }
        }
        Some(found)
    }

    /// How many children the element claims that begins here.
    fn claimed(&mut self) -> Option<u64> {
        let (mut number, mut claimed) = (0, 0);
        while let Some(kind) = self.field(&mut number)? {
            match (number, kind) {
                (5, I32) => claimed = zigzag(self.varint()?).try_into().ok()?,
                _ => self.skip(kind, 0)?,
            }
        }
        Some(claimed)
    }

    /// The type of the next field of a structure, whose number is counted on; nothing at its end.
    fn field(&mut self, number: &mut i64) -> Option<Option<u8>> {
        let header = self.byte()?;
        if header == 0 {
            return Some(None);
        }
        *number = match header >> 4 {
            0 => zigzag(self.varint()?),
            delta => number.checked_add(delta.into())?,
        };
        Some(Some(header & 15))
    }

    /// How many values follow in a list, and their type.
    fn list(&mut self) -> Option<(u64, u8)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.varint()?,
            count => count.into(),
        };
        Some((count, header & 15))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEEPEST_VALUE {
            return None;
        }
        match kind {
            // of a field, truth is in the type
            1 | 2 => {}
            3 => _ = self.byte()?,
            4..=6 => _ = self.varint()?,
            7 => self.bytes(8)?,
            8 => {
                let len = self.varint()?;
                self.bytes(len)?;
            }
            LIST | 10 => {
                let (count, kind) = self.list()?;
                for _ in 0..count {
                    self.item(kind, depth)?;
                }
            }
            11 => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.item(kinds >> 4, depth)?;
                    self.item(kinds & 15, depth)?;
                }
            }
            STRUCT => {
                let mut number = 0;
                while let Some(kind) = self.field(&mut number)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Passes over a value of a list or map, where truth takes a byte.
    fn item(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => self.bytes(1),
            kind => self.skip(kind, depth + 1),
        }
    }

    fn bytes(&mut self, count: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << (7 * at);
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }
}

fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Metadata of a file whose schema's elements claim so many children.
    fn checked(children: &[u64]) -> std::result::Result<(), String> {
        let varint = |mut value: u64| {
            let mut out = Vec::new();
            while value > 127 {
                out.push(value as u8 | 128);
                value >>= 7;
            }
            out.push(value as u8);
            out
        };
        // the version, then a list of structures
        let mut footer = [&[0x15, 2, 0x19, 0xfc][..], &varint(children.len() as u64)].concat();
        for claimed in children {
            // a name, and the children
            footer.extend([&[0x48, 1, b'x', 0x15][..], &varint(2 * claimed), &[0]].concat());
        }
        footer.push(0);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b"PAR1", &footer[..], &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()).unwrap();
        check(&mut file)
    }

    #[test]
    fn schemas_have_the_children_they_claim() {
        assert_eq!(checked(&[2, 0, 1, 0]), Ok(()));
        let refused = |children: &[u64]| checked(children).unwrap_err();
        assert!(
            refused(&[1 << 30, 0])
                .contains("element 0 of the schema states 1073741824 children, but the schema has 2 elements")
        );
        assert!(refused(&[2, 0]).contains("1 more elements than it has"));
        assert!(refused(&[1, 0, 0]).contains("element 2 of the schema has no parent"));
        let nested: Vec<u64> = [vec![1; 100_000], vec![0]].concat();
        assert!(refused(&nested).contains("more than 100 nested groups"));
        // each claims all that follow
        assert!(refused(&(0..50).rev().collect::<Vec<u64>>()).contains("more elements than it has"));
    }

    #[test]
    fn what_is_no_metadata_is_refused() {
        let with = |footer: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()).unwrap();
            check(&mut file)
        };
        assert_eq!(with(b"\xff\xff\xff"), Err("the footer is damaged".to_owned()));
        assert_eq!(with(&[0x1c; 1000]), Err("the footer is damaged".to_owned()), "structures without end");
        assert_eq!(with(&[0x19, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]), Err("the footer is damaged".to_owned()));
    }
}
