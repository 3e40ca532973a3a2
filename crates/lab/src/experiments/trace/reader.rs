//! Reads a trace one request after the other, so that its length does not matter.

use std::io::{BufRead, Read};

use super::Request;
use super::lines::Lines;
use super::vscsi;

/// A line that is longer is none.
const LINE_MAX: u64 = 4096;

/// The requests of a file, in its order, with the times that it has. What cannot be read ends it.
pub struct Reader<R> {
    source: R,
    form: Form,
    /// Records and lines so far.
    number: u64,
    line: String,
    is_over: bool,
}

enum Form {
    Vscsi,
    /// What lines are like, once there was one.
    Lines(Option<Lines>),
}

impl<R: BufRead> Reader<R> {
    /// Looks at how a file begins.
    ///
    /// # Errors
    /// It cannot be read, or there is nothing in it.
    pub fn new(mut source: R) -> Result<Reader<R>, String> {
        let begin = source.fill_buf().map_err(|error| error.to_string())?;
        let form = match begin {
            [] => return Err("it is empty".into()),
            _ if begin.contains(&0) => Form::Vscsi,
            _ => Form::Lines(None),
        };
        Ok(Reader { source, form, number: 0, line: String::new(), is_over: false })
    }

    /// What kind of trace it is; known after the first request.
    pub fn format(&self) -> &'static str {
        match &self.form {
            Form::Vscsi => "VSCSI version 1",
            Form::Lines(lines) => lines.as_ref().map_or("lines", Lines::name),
        }
    }

    fn read(&mut self) -> Result<Option<Request>, String> {
        match self.form {
            Form::Vscsi => self.read_record(),
            Form::Lines(_) => self.read_line(),
        }
    }

    fn read_record(&mut self) -> Result<Option<Request>, String> {
        let mut record = Vec::with_capacity(vscsi::RECORD);
        let read = (&mut self.source).take(vscsi::RECORD as u64).read_to_end(&mut record);
        read.map_err(|error| error.to_string())?;
        self.number += 1;
        match <&[u8; vscsi::RECORD]>::try_from(record.as_slice()) {
            Ok(record) => vscsi::request(record).map(Some).map_err(|what| format!("record {}: {what}", self.number)),
            Err(_) if record.is_empty() => Ok(None),
            Err(_) => Err(format!(
                "its last record has {} bytes of {}: the file was cut off; copy it again",
                record.len(),
                vscsi::RECORD
            )),
        }
    }

    fn read_line(&mut self) -> Result<Option<Request>, String> {
        let Form::Lines(lines) = &mut self.form else { return Ok(None) };
        loop {
            self.line.clear();
            self.number += 1;
            let number = self.number;
            let read = (&mut self.source).take(LINE_MAX).read_line(&mut self.line);
            match read.map_err(|error| format!("line {number}: {error}"))? {
                0 => return Ok(None),
                _ if self.line.trim().is_empty() => continue,
                _ => {}
            }
            let lines = lines.get_or_insert_with(|| Lines::like(&self.line));
            return lines.request(&self.line).map(Some).map_err(|what| format!("line {number}: {what}"));
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Request, String>;

    fn next(&mut self) -> Option<Result<Request, String>> {
        if self.is_over {
            return None;
        }
        let read = self.read().transpose();
        self.is_over = !matches!(read, Some(Ok(_)));
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<Request, String>> {
        Reader::new(bytes).unwrap().collect()
    }

    #[test]
    fn blank_lines_are_none_and_an_error_is_the_end() {
        let all = read(b"0 1 0 512 0\n\n1 1 0 512 1\nx\n2 1 0 512 1\n");
        assert!(matches!(all.as_slice(), [Ok(_), Ok(_), Err(what)] if what.contains("line 4")), "{all:?}");
    }

    #[test]
    fn what_is_no_text_is_an_error() {
        let long = [&b"0 0 0 512 0\n"[..], &[b'7'; 10_000]].concat();
        assert!(matches!(read(&long).as_slice(), [Ok(_), Err(what)] if what.contains("line 2")));
        assert!(matches!(read(b"0 0 0 512 0\n\xff\xfe\n").as_slice(), [Ok(_), Err(what)] if what.contains("line 2")));
    }
}
