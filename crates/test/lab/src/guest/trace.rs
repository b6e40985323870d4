//! QEMU's trace of the emulated drives: which command transferred which bytes to or from which memory.
//!
//! A drive first logs a command, then the addresses of the command. QEMU runs its drives on one thread, so all
//! addresses up to the next command belong to it. Each drive has its own namespace number.

use std::ops::Range;

/// A drive, by its namespace number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuestDrive {
    /// The source.
    A = 1,
    /// The provider of BAR memory.
    B = 2,
    /// The sink.
    C = 3,
    /// The drive with ext4.
    D = 4,
    /// An empty drive.
    E = 5,
    /// The drive for marks: its reads mark positions in the trace.
    M = 6,
}

impl GuestDrive {
    /// All drives.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::M];

    /// The size of the drive.
    pub fn bytes(self) -> u64 {
        match self {
            Self::D => 128 << 20,
            _ => 16 << 20,
        }
    }
}

/// A command with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The drive.
    pub drive: GuestDrive,
    /// Whether it writes to the drive.
    pub is_write: bool,
    /// The byte range on the drive.
    pub at: Range<u64>,
    /// Bytes transferred to or from the BAR of the provider.
    pub bar_bytes: u64,
    /// Bytes transferred to or from any other address: host memory.
    pub host_bytes: u64,
}

/// DMA bytes by destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dma {
    /// To or from the BAR.
    pub bar: u64,
    /// To or from host memory.
    pub host: u64,
}

impl Dma {
    /// The total DMA of some commands.
    pub fn of<'a>(commands: impl IntoIterator<Item = &'a Command>) -> Self {
        let mut sum = Self::default();
        for command in commands {
            sum.bar += command.bar_bytes;
            sum.host += command.host_bytes;
        }
        sum
    }
}

/// All commands with data, in order.
#[derive(Clone, Debug, Default)]
pub struct DmaTrace {
    commands: Vec<Command>,
}

/// The block of the drives.
const BLOCK_BYTES: u64 = 512;

/// The distance of marks on their drive.
const MARK_BYTES: u64 = 4096;

impl DmaTrace {
    /// Parses QEMU's log with the address range of the BAR.
    pub(super) fn read(log: &str, bar: &Range<u64>) -> Self {
        let mut commands: Vec<Command> = Vec::new();
        let mut is_data = false;
        for line in log.lines() {
            let Some((name, rest)) = line
                .split_once("pci_nvme_")
                .map(|(_, r)| r)
                .and_then(|r| r.split_once(' '))
            else {
                continue;
            };
            let field = |key: &str| {
                let mut words = rest.split_whitespace().skip_while(|word| *word != key);
                number(words.nth(1)?)
            };
            match name {
                "read" | "write" => {
                    let (nsid, count, lba) = (field("nsid"), field("count"), field("lba"));
                    let drive = GuestDrive::ALL.into_iter().find(|d| Some(*d as u64) == nsid);
                    is_data = drive.is_some();
                    if let (Some(drive), Some(count), Some(lba)) = (drive, count, lba) {
                        let start = lba * BLOCK_BYTES;
                        commands.push(Command {
                            drive,
                            is_write: name == "write",
                            at: start..start + count,
                            bar_bytes: 0,
                            host_bytes: 0,
                        });
                    }
                }
                "map_addr" if is_data => {
                    let (Some(address), Some(bytes)) = (field("addr"), field("len")) else {
                        continue;
                    };
                    let command = commands.last_mut().expect("addresses follow their command");
                    *(if bar.contains(&address) {
                        &mut command.bar_bytes
                    } else {
                        &mut command.host_bytes
                    }) += bytes;
                }
                "admin_cmd" => is_data = false,
                _ => {}
            }
        }
        Self { commands }
    }

    /// The commands between two marks.
    ///
    /// # Panics
    ///
    /// Panics if a mark is missing.
    pub fn between(&self, first: u64, last: u64) -> &[Command] {
        let find = |mark: u64| {
            let is_mark = |c: &Command| c.drive == GuestDrive::M && c.at.start == mark * MARK_BYTES;
            let found = self.commands.iter().rposition(is_mark);
            found.unwrap_or_else(|| panic!("mark {mark} is not in the trace"))
        };
        &self.commands[find(first) + 1..find(last)]
    }

    /// All commands.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_belong_to_the_command_before_them() {
        let log = "\
7@1.5:pci_nvme_read cid 4 nsid 6 nlb 8 count 4096 lba 0x8
7@1.5:pci_nvme_map_addr addr 0x9000 len 4096
7@1.6:pci_nvme_write cid 5 opname 'NVME_NVM_CMD_WRITE' nsid 3 nlb 16 count 8192 lba 0x10
7@1.6:pci_nvme_map_addr addr 0xf4001000 len 4096
7@1.6:pci_nvme_map_addr addr 0x2000 len 4096
7@1.7:pci_nvme_admin_cmd cid 5 sqid 0 opc 0x6 opname 'NVME_ADM_CMD_IDENTIFY'
7@1.7:pci_nvme_map_addr addr 0x7000 len 4096
7@1.8:pci_nvme_read cid 4 nsid 6 nlb 8 count 4096 lba 0x10
";
        let trace = DmaTrace::read(log, &(0xf400_0000..0xf800_0000));
        let seen = trace.between(1, 2);
        let expected = Command {
            drive: GuestDrive::C,
            is_write: true,
            at: 8192..16_384,
            bar_bytes: 4096,
            host_bytes: 4096,
        };
        assert_eq!(seen, [expected]);
    }
}
