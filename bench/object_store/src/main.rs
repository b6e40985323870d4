//! Reads an object into memory by object_store: `object-store-get KEY BYTES ROUNDS`, 8 ranges of 8 MiB at a time. With a
//! fourth word, `put`, it writes one from memory in 8 parts of 8 MiB at a time, unsigned and with CRC-64/NVME.
//!
//! Each body is read as a stream and copied to its place. The service and the credentials come from the environment.
//! Prints the CPU seconds and the wall seconds of each round but the first, which opens the connections.

use std::{env, fs, ops::Range, time::Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{
    GetOptions, ObjectStore, ObjectStoreExt,
    aws::{AmazonS3Builder, Checksum},
    path::Path,
};

const CONNECTIONS: usize = 8;
const RANGE_BYTES: usize = 8 << 20;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let words: Vec<_> = env::args().skip(1).collect();
    let (writes, words) = match &words[..] {
        [words @ .., put] if put == "put" => (true, words),
        words => (false, words),
    };
    let [key, bytes, rounds] = words else {
        return Err("object-store-get KEY BYTES ROUNDS [put]".into());
    };
    let (key, bytes, rounds) = (Path::from(key.as_str()), bytes.parse()?, rounds.parse()?);
    let store = AmazonS3Builder::from_env()
        .with_bucket_name("bench")
        .with_allow_http(true)
        .with_unsigned_payload(true);
    let store = if writes {
        store.with_checksum_algorithm(Checksum::CRC64NVME).build()?
    } else {
        store.build()?
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut memory = vec![0_u8; bytes];
    for (number, word) in memory.chunks_mut(8).enumerate() {
        let value = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
    let source = if writes {
        Bytes::from(std::mem::take(&mut memory))
    } else {
        Bytes::new()
    };
    for round in 0..=rounds {
        let (cpu, start) = (cpu_seconds()?, Instant::now());
        if writes {
            runtime.block_on(write(&store, &key, &source))?;
        } else {
            runtime.block_on(read(&store, &key, &mut memory))?;
        }
        if round > 0_u32 {
            println!("{} {}", cpu_seconds()? - cpu, start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// Writes the object in parts. Slices of `source` are sent without a copy.
async fn write(store: &dyn ObjectStore, key: &Path, source: &Bytes) -> Result<(), Failed> {
    let mut upload = store.put_multipart(key).await?;
    let parts = (0..source.len()).step_by(RANGE_BYTES).map(|start| {
        let end = source.len().min(start + RANGE_BYTES);
        upload.put_part(source.slice(start..end).into())
    });
    let parts: Vec<_> = parts.collect();
    stream::iter(parts)
        .buffer_unordered(CONNECTIONS)
        .try_collect::<Vec<_>>()
        .await?;
    upload.complete().await?;
    Ok(())
}

/// Fills `memory` with the object.
async fn read(store: &dyn ObjectStore, key: &Path, memory: &mut [u8]) -> Result<(), Failed> {
    let ranges = memory.chunks_mut(RANGE_BYTES).enumerate().map(Ok);
    stream::iter(ranges)
        .try_for_each_concurrent(CONNECTIONS, |(number, into)| async move {
            let start = (number * RANGE_BYTES) as u64;
            get(store, key, start..start + into.len() as u64, into).await
        })
        .await
}

async fn get(store: &dyn ObjectStore, key: &Path, range: Range<u64>, into: &mut [u8]) -> Result<(), Failed> {
    let options = GetOptions {
        range: Some(range.into()),
        ..GetOptions::default()
    };
    let mut body = store.get_opts(key, options).await?.into_stream();
    let mut filled = 0;
    while let Some(part) = body.next().await {
        let part = part?;
        into[filled..filled + part.len()].copy_from_slice(&part);
        filled += part.len();
    }
    if filled != into.len() {
        return Err("a body is too short".into());
    }
    Ok(())
}

/// The CPU time of this process: fields 14 and 15 of its `stat`, in ticks of 10 ms.
fn cpu_seconds() -> Result<f64, Failed> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}
