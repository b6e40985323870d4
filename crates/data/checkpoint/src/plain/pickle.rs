//! Reads pickles without running them.
//!
//! A pickle is a program for a stack machine with a memo. This machine has only the instructions that pickles of plain
//! values use. For a call, it records the name and the arguments; [`rebuild`](super::rebuild) turns them into a value
//! when the program is over. Nothing is imported, called or assigned to.
//!
//! Memory is bounded by the length of the pickle. A value that is used many times is copied each time, within a budget.
//! A value that contains itself is an error.

use std::collections::HashMap;

use straightway_core::Result;

use super::{
    BUDGET_BYTES_MIN, BUDGET_PER_BYTE, DEPTH_MAX, Maker, Plain, PythonName, Sequence, VALUES_MAX, corrupt,
    rebuild::{self, Call},
    untrusted,
};

/// The number of a node.
type Id = usize;

/// A value that the program has made so far.
enum Node {
    /// A value that is complete.
    Leaf(Plain),
    /// A name in a module. Only names that can be part of a value are accepted.
    Global(String, String),
    Items(Sequence, Vec<Id>),
    Pairs(Vec<(Id, Id)>),
    /// A call of a global.
    Call(Id, Call<Id>),
}

/// An entry of the stack.
enum Slot {
    Value(Id),
    Mark,
}

struct Machine<'a> {
    rest: &'a [u8],
    nodes: Vec<Node>,
    stack: Vec<Slot>,
    memo: HashMap<u64, Id>,
    budget: usize,
}

pub(super) fn unpickle(data: &[u8]) -> Result<Plain> {
    let mut machine = Machine {
        rest: data,
        nodes: Vec::new(),
        stack: Vec::new(),
        memo: HashMap::new(),
        budget: BUDGET_BYTES_MIN.saturating_add(data.len().saturating_mul(BUDGET_PER_BYTE)),
    };
    let result = machine.run()?;
    machine.finish(result, 0)
}

impl Machine<'_> {
    /// Runs the program. Returns the number of its result.
    fn run(&mut self) -> Result<Id> {
        loop {
            let code = self.byte()?;
            if code == b'.' {
                let result = self.pop()?;
                if !self.stack.is_empty() || !self.rest.is_empty() {
                    return Err(corrupt("a pickle goes on after its end"));
                }
                return Ok(result);
            }
            self.step(code)?;
        }
    }

    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            // The protocol version and the frame length, which are only hints.
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'N' => self.leaf(Plain::None),
            0x88 => self.leaf(Plain::Bool(true)),
            0x89 => self.leaf(Plain::Bool(false)),
            b'K' | b'M' | b'J' | 0x8a | 0x8b | b'G' => self.number(code),
            0x8c | b'X' | 0x8d | b'C' | b'B' | 0x8e => self.string(code),
            b')' | b']' | b'}' | 0x8f => self.empty(code),
            b'(' => {
                self.stack.push(Slot::Mark);
                Ok(())
            }
            b't' | 0x85 | 0x86 | 0x87 | 0x91 => self.gather(code),
            b'a' | b'e' | 0x90 => self.append(code),
            b's' | b'u' => self.set(code),
            b'0' => self.stack.pop().map(drop).ok_or_else(ends),
            b'1' => self.since_mark().map(drop),
            0x94 | b'q' | b'r' => self.memoize(code),
            b'h' | b'j' => self.recall(code),
            b'c' | 0x93 => self.global(code),
            b'R' | 0x81 => self.call(code),
            b'b' => self.build(),
            _ => Err(corrupt(format!(
                "a pickle has the instruction {code:#04x}, which no plain value needs"
            ))),
        }
    }

    fn number(&mut self, code: u8) -> Result<()> {
        let value = match code {
            b'K' => Plain::Int(i64::from(self.byte()?)),
            b'M' => Plain::Int(i64::from(u16::from_le_bytes(self.array()?))),
            b'J' => Plain::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'G' => Plain::Float(f64::from_be_bytes(self.array()?)),
            _ => {
                let length = self.unsigned(if code == 0x8a { 1 } else { 4 })?;
                Plain::integer(self.long(length)?.to_vec())
            }
        };
        self.leaf(value)
    }

    fn string(&mut self, code: u8) -> Result<()> {
        let length = self.unsigned(match code {
            0x8c | b'C' => 1,
            b'X' | b'B' => 4,
            _ => 8,
        })?;
        let bytes = self.long(length)?.to_vec();
        let is_bytes = matches!(code, b'C' | b'B' | 0x8e);
        self.leaf(if is_bytes {
            Plain::Bytes(bytes)
        } else {
            Plain::string(bytes)
        })
    }

    fn empty(&mut self, code: u8) -> Result<()> {
        self.push(match code {
            b')' => Node::Items(Sequence::Tuple, Vec::new()),
            b']' => Node::Items(Sequence::List, Vec::new()),
            0x8f => Node::Items(Sequence::Set, Vec::new()),
            _ => Node::Pairs(Vec::new()),
        })
    }

    /// Makes a tuple or a frozen set of values from the stack.
    fn gather(&mut self, code: u8) -> Result<()> {
        let items = match code {
            b't' | 0x91 => self.since_mark()?,
            // A tuple of 1 to 3.
            _ => {
                let popped = (0x84..code).map(|_| self.pop());
                let mut items = popped.collect::<Result<Vec<_>>>()?;
                items.reverse();
                items
            }
        };
        let kind = if code == 0x91 {
            Sequence::FrozenSet
        } else {
            Sequence::Tuple
        };
        self.push(Node::Items(kind, items))
    }

    fn append(&mut self, code: u8) -> Result<()> {
        let new = if code == b'a' {
            vec![self.pop()?]
        } else {
            self.since_mark()?
        };
        let target = self.top()?;
        match &mut self.nodes[target] {
            Node::Items(Sequence::List, items) if code != 0x90 => items.extend(new),
            Node::Items(Sequence::Set, items) if code == 0x90 => items.extend(new),
            Node::Call(_, call) if code != 0x90 => call.items.extend(new),
            _ => return Err(corrupt("a pickle appends to a value that is not a list")),
        }
        Ok(())
    }

    fn set(&mut self, code: u8) -> Result<()> {
        let new = if code == b's' {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.since_mark()?
        };
        if !new.len().is_multiple_of(2) {
            return Err(corrupt("a pickle sets a key to no value"));
        }
        let new = new.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let target = self.top()?;
        match &mut self.nodes[target] {
            Node::Pairs(pairs) | Node::Call(_, Call { pairs, .. }) => pairs.extend(new),
            _ => {
                return Err(corrupt("a pickle sets an item of a value that is not a dictionary"));
            }
        }
        Ok(())
    }

    fn memoize(&mut self, code: u8) -> Result<()> {
        let place = match code {
            0x94 => self.memo.len() as u64,
            b'q' => self.unsigned(1)?,
            _ => self.unsigned(4)?,
        };
        let id = self.top()?;
        self.memo.insert(place, id);
        Ok(())
    }

    fn recall(&mut self, code: u8) -> Result<()> {
        let place = self.unsigned(if code == b'h' { 1 } else { 4 })?;
        let missing = || corrupt("a pickle reads a memo entry that does not exist");
        let id = *self.memo.get(&place).ok_or_else(missing)?;
        self.stack.push(Slot::Value(id));
        Ok(())
    }

    /// Records a global. A name that cannot be part of a plain value is an error that contains it.
    fn global(&mut self, code: u8) -> Result<()> {
        let (module, name) = if code == b'c' {
            (self.line()?, self.line()?)
        } else {
            let name = self.text()?;
            (self.text()?, name)
        };
        let (today, short) = rebuild::modern(&module, &name);
        let is_known = PythonName::find(today, short).is_some()
            || Maker::of_global(today, short).is_some()
            || rebuild::is_function(today, short);
        if !is_known {
            return Err(untrusted(&module, &name));
        }
        let node = Node::Global(today.to_owned(), short.to_owned());
        self.push(node)
    }

    /// Records a call of a global.
    fn call(&mut self, code: u8) -> Result<()> {
        let (arguments, global) = (self.pop()?, self.pop()?);
        let Node::Items(Sequence::Tuple, arguments) = &self.nodes[arguments] else {
            return Err(corrupt("a pickle calls with arguments that are not a tuple"));
        };
        let arguments = arguments.clone();
        self.spend(arguments.len() * size_of::<Id>())?;
        match &self.nodes[global] {
            // Only a UUID may be made without a call and then be given a state.
            Node::Global(module, name) if code == 0x81 && (&**module, &**name) != ("uuid", "UUID") => {
                return Err(untrusted(module, name));
            }
            Node::Global(..) => {}
            _ => return Err(corrupt("a pickle calls a value that is not a global")),
        }
        let call = Call {
            arguments,
            items: Vec::new(),
            pairs: Vec::new(),
            state: None,
        };
        self.push(Node::Call(global, call))
    }

    /// Records the state that an object is given.
    fn build(&mut self) -> Result<()> {
        let given = self.pop()?;
        let target = self.top()?;
        match &mut self.nodes[target] {
            Node::Call(_, call) if call.state.is_none() => {
                call.state = Some(given);
                Ok(())
            }
            _ => Err(corrupt("a pickle gives a state to a value that takes none")),
        }
    }

    /// The value of a node.
    fn finish(&mut self, id: Id, depth: usize) -> Result<Plain> {
        if depth > DEPTH_MAX {
            return Err(corrupt(format!("it is deeper than {DEPTH_MAX}, or contains itself")));
        }
        self.spend(size_of::<Plain>())?;
        match &self.nodes[id] {
            Node::Leaf(value) => {
                let value = value.clone();
                self.spend(match &value {
                    Plain::Text(text) => text.len(),
                    Plain::Bytes(bytes) | Plain::Long(bytes) | Plain::Surrogates(bytes) => bytes.len(),
                    _ => 0,
                })?;
                Ok(value)
            }
            Node::Global(module, name) => {
                let name = PythonName::find(module, name).ok_or_else(|| untrusted(module, name))?;
                Ok(Plain::Name(name))
            }
            Node::Items(kind, items) => {
                let (kind, items) = (*kind, items.clone());
                Ok(Plain::Items(kind, self.finish_all(&items, depth)?))
            }
            Node::Pairs(pairs) => {
                let pairs = pairs.clone();
                Ok(Plain::Pairs(self.finish_pairs(&pairs, depth)?))
            }
            Node::Call(global, call) => {
                let Node::Global(module, name) = &self.nodes[*global] else {
                    return Err(corrupt("a pickle calls a value that is not a global"));
                };
                let (module, name, call) = (module.clone(), name.clone(), call.clone());
                let state = call.state.map(|state| self.finish(state, depth + 1));
                let call = Call {
                    arguments: self.finish_all(&call.arguments, depth)?,
                    items: self.finish_all(&call.items, depth)?,
                    pairs: self.finish_pairs(&call.pairs, depth)?,
                    state: state.transpose()?,
                };
                call.value(&module, &name)
            }
        }
    }

    fn finish_all(&mut self, ids: &[Id], depth: usize) -> Result<Vec<Plain>> {
        ids.iter().map(|id| self.finish(*id, depth + 1)).collect()
    }

    fn finish_pairs(&mut self, pairs: &[(Id, Id)], depth: usize) -> Result<Vec<(Plain, Plain)>> {
        let mut finish = |id: &Id| self.finish(*id, depth + 1);
        let pair = |(key, value): &(Id, Id)| Ok((finish(key)?, finish(value)?));
        pairs.iter().map(pair).collect()
    }

    fn spend(&mut self, bytes: usize) -> Result<()> {
        let left = self.budget.checked_sub(bytes);
        self.budget = left.ok_or_else(|| corrupt("a small pickle expands to a large value"))?;
        Ok(())
    }

    fn leaf(&mut self, value: Plain) -> Result<()> {
        self.push(Node::Leaf(value))
    }

    fn push(&mut self, node: Node) -> Result<()> {
        if self.nodes.len() == VALUES_MAX {
            return Err(corrupt(format!("it has more than {VALUES_MAX} values")));
        }
        self.stack.push(Slot::Value(self.nodes.len()));
        self.nodes.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id> {
        match self.stack.pop() {
            Some(Slot::Value(id)) => Ok(id),
            _ => Err(ends()),
        }
    }

    fn top(&self) -> Result<Id> {
        match self.stack.last() {
            Some(Slot::Value(id)) => Ok(*id),
            _ => Err(ends()),
        }
    }

    fn since_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.stack.iter().rposition(|slot| matches!(slot, Slot::Mark));
        let taken = self.stack.split_off(mark.ok_or_else(ends)?);
        let values = taken.into_iter().filter_map(|slot| match slot {
            Slot::Value(id) => Some(id),
            Slot::Mark => None,
        });
        Ok(values.collect())
    }

    /// A string from the stack.
    fn text(&mut self) -> Result<String> {
        let id = self.pop()?;
        match &self.nodes[id] {
            Node::Leaf(Plain::Text(text)) if text.len() <= 256 => Ok(text.clone()),
            _ => Err(corrupt("a pickle names a global by a value that is not a name")),
        }
    }

    /// A line of the program.
    fn line(&mut self) -> Result<String> {
        let end = self.rest.iter().take(257).position(|byte| *byte == b'\n');
        let line = self.take(end.ok_or_else(ends)?)?.to_vec();
        self.take(1)?;
        String::from_utf8(line).map_err(|_| ends())
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// A number of `bytes` bytes.
    fn unsigned(&mut self, bytes: usize) -> Result<u64> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.take(bytes)?);
        Ok(u64::from_le_bytes(wide))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("it has just that length"))
    }

    fn long(&mut self, length: u64) -> Result<&[u8]> {
        self.take(usize::try_from(length).map_err(|_| ends())?)
    }

    fn take(&mut self, length: usize) -> Result<&[u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(ends)?;
        self.rest = rest;
        Ok(taken)
    }
}

fn ends() -> straightway_core::Error {
    corrupt("a pickle ends too early")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(program: &[u8]) -> Result<Plain> {
        unpickle(&[b"\x80\x04", program].concat())
    }

    #[test]
    fn a_pickle_of_plain_values_is_read() {
        // {"a": [1, (2.0, None)], "b": same list}, as Python writes it.
        let program = b"}\x94(\x8c\x01a\x94]\x94(K\x01G@\x00\x00\x00\x00\x00\x00\x00N\x86\x94e\x8c\x01b\x94h\x02u.";
        let list = Plain::Items(
            Sequence::List,
            vec![
                Plain::Int(1),
                Plain::Items(Sequence::Tuple, vec![Plain::Float(2.0), Plain::None]),
            ],
        );
        let pair = |key: &str| (Plain::Text(key.to_owned()), list.clone());
        assert_eq!(read(program).unwrap(), Plain::Pairs(vec![pair("a"), pair("b")]));
        let date = b"cdatetime\ndate\nC\x04\x07\xea\x01\x02\x85R.";
        let parts = vec![Plain::Int(2026), Plain::Int(1), Plain::Int(2)];
        assert_eq!(read(date).unwrap(), Plain::Object(Maker::Date, parts));
    }

    #[test]
    fn a_global_that_is_not_plain_is_refused_by_name() {
        for (program, words) in [
            (&b"cos\nsystem\n\x8c\x01x\x85R."[..], "os.system"),
            (b"cbuiltins\neval\n.", "builtins.eval"),
            (b"cbuiltins\ngetattr\n.", "builtins.getattr"),
            (b"cpathlib\nPath\n)\x81.", "pathlib.Path"),
            (b"ctorch\nserialization.os.system\n.", "torch.serialization.os.system"),
            (b"cnumpy\nload\n.", "numpy.load"),
            (b"cx\x1b[2J\ny\n.", "x\\u{1b}[2J.y"),
        ] {
            let error = read(program).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_small_pickle_cannot_expand_to_a_large_or_endless_value() {
        let mut laughs = b"]q\x000".to_vec();
        for i in 0..38 {
            laughs.extend([b']', b'(', b'h', i, b'h', i, b'e', b'q', i + 1, b'0']);
        }
        laughs.extend(b"h\x26.");
        assert!(read(&laughs).unwrap_err().to_string().contains("large value"));
        // One string of 4 MiB, a thousand times.
        let long = [&b"X\x00\x00\x40\x00"[..], &vec![b'a'; 4 << 20], b"q\x000("].concat();
        let many = [&long[..], &b"h\x00".repeat(1000), b"t."].concat();
        assert!(read(&many).unwrap_err().to_string().contains("large value"));
        assert!(
            read(b"]q\x00h\x00a.")
                .unwrap_err()
                .to_string()
                .contains("contains itself")
        );
        let deep = [&b"(".repeat(1 << 16)[..], b"N", &b"t".repeat(1 << 16), b"."].concat();
        assert!(read(&deep).is_err());
        assert!(read(b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.").is_err());
    }
}
