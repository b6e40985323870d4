//! `straightway inspect`: shows the contents of a model, and what a load would read.

use std::{collections::BTreeMap, process::ExitCode};

use straightway_core::{Bytes, Place, text::counted};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};
use straightway_stores::Session;
use straightway_weights::{Inspection, Model};

use super::{
    load_args::LoadArgs,
    output::{Output, print_json_streamed},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let load = &args.load;
    args.output.check(&load.path)?;
    let session = Session::new();
    let at = load.location(&session)?;
    let loader = load.loader(&session, &at)?;
    let model = Model::open(at)?;
    let selection = load.selection.of(&model)?;
    let inspection = loader.inspect(&model, &selection, load.device)?;
    // Streamed: the JSON value and the page of a model with a million tensors take a gigabyte each.
    if args.output.is_json_alone() {
        drop((selection, model));
        print_json_streamed(&inspection)?;
        return Ok(ExitCode::SUCCESS);
    }
    let json = serde_json::to_value(&inspection)?;
    args.output.write(&page(&inspection, load.device), &json)?;
    Ok(ExitCode::SUCCESS)
}

fn page(inspection: &Inspection, place: Place) -> Page {
    let title = format!("{}, to {}", inspection.path, place.in_words());
    let mut dtypes: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in &inspection.tensors {
        let (count, bytes) = dtypes.entry(tensor.dtype).or_default();
        *count += 1;
        *bytes += tensor.selected_bytes;
    }
    let columns = [
        Column::text("dtype"),
        Column::new("tensors", Unit::Count),
        Column::new("size", Unit::Bytes),
    ];
    let mut kinds = Table::new("", columns);
    for (dtype, (count, bytes)) in dtypes {
        kinds.push([Cell::from(dtype), count.into(), Bytes(bytes).into()]);
    }
    let aligned = inspection.files.iter().filter(|file| file.is_aligned).count();
    let (tensors, files) = (inspection.tensors.len(), inspection.files.len());
    let bytes: u64 = inspection.tensors.iter().map(|tensor| tensor.selected_bytes).sum();
    let (tone, pages) = match files - aligned {
        0 => (Tone::Good, "the data of all begins on a page".to_owned()),
        _ if aligned == 0 => (
            Tone::Caution,
            "none has its data on a page: `straightway rewrite` aligns it".to_owned(),
        ),
        odd => (
            Tone::Caution,
            format!("{odd} of them do not have their data on a page: `straightway rewrite` aligns it"),
        ),
    };
    let verdict = format!(
        "A load reads {} of {} from {}; {pages}.",
        Bytes(bytes),
        counted(tensors as u64, "tensor"),
        counted(files as u64, "file")
    );
    Page::new(title)
        .verdict(tone, verdict)
        .section("Tensors", [tensor_table(inspection).into()])
        .section("Dtypes", [kinds.into()])
        .section("Files", [file_table(inspection).into()])
        .section("What a load would read", [route_table(inspection).into()])
}

fn tensor_table(inspection: &Inspection) -> Table {
    let columns = [
        Column::text("tensor"),
        Column::text("dtype"),
        Column::text("shape"),
        Column::new("size", Unit::Bytes),
        Column::new("aligned to", Unit::Bytes),
        Column::new("file", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for tensor in &inspection.tensors {
        table.push([
            Cell::from(tensor.name.as_str()),
            tensor.dtype.into(),
            format!("{:?}", tensor.shape).into(),
            Bytes(tensor.bytes).into(),
            Bytes(tensor.align_bytes).into(),
            tensor.file.into(),
        ]);
    }
    table
}

fn file_table(inspection: &Inspection) -> Table {
    let columns = [
        Column::new("file", Unit::Count),
        Column::text("path"),
        Column::new("tensors", Unit::Count),
        Column::new("size", Unit::Bytes),
        Column::text("data on a page"),
    ];
    let mut table = Table::new("", columns);
    for (number, file) in inspection.files.iter().enumerate() {
        table.push([
            Cell::from(number),
            file.path.as_str().into(),
            file.tensors.into(),
            Bytes(file.bytes).into(),
            if file.is_aligned { "yes" } else { "no" }.into(),
        ]);
    }
    table
}

fn route_table(inspection: &Inspection) -> Table {
    let columns = [
        Column::text("route"),
        Column::new("size", Unit::Bytes),
        Column::text("why"),
    ];
    let mut table = Table::new("", columns);
    for row in &inspection.routes {
        table.push([
            Cell::from(row.route.to_string()),
            Bytes(row.bytes).into(),
            row.reason.to_string().into(),
        ]);
    }
    table
}
