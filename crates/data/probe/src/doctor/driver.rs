//! Checks of the GPU and its driver.

use std::collections::BTreeMap;

use straightway_core::Bytes;

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::{ADVICE, ALL_PATHS, DIRECT, P2PDMA},
    facts::{Facts, Gpu, major_minor},
    nvidia_fs,
};

/// The first open driver with P2PDMA, by NVIDIA's guide to it.
const P2PDMA_DRIVER: (u32, u32) = (565, 47);
/// The GPUs that support P2PDMA by NVIDIA's guide, and their variants for export and with Grace.
const P2PDMA_MODELS: [&str; 17] = [
    "A100", "A800", "A40", "L4", "L40", "L40S", "H100", "H800", "H200", "H20", "GH200", "B100", "B200", "GB200",
    "B300", "GB300", "GB10",
];
/// The minimum BAR1 size: a smaller one cannot map the memory of any GPU that supports P2PDMA.
const BAR1_BYTES_MIN: u64 = 16 << 30;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gpu.present",
        layer: Layer::Machine,
        title: "NVIDIA GPU",
        ways: ALL_PATHS,
        why: "without a GPU there is no memory to transfer into",
        mend: "use a GPU machine; in a container: `docker run --gpus all …`",
        look: look_present,
    },
    Check {
        id: "driver.loaded",
        layer: Layer::Machine,
        title: "NVIDIA driver",
        ways: ALL_PATHS,
        why: "CUDA and cuFile access the GPU through it",
        mend: "sudo apt install nvidia-open && sudo modprobe nvidia",
        look: look_loaded,
    },
    Check {
        id: "driver.nodes",
        layer: Layer::Machine,
        title: "device nodes",
        ways: ALL_PATHS,
        why: "a process opens the GPU by its nodes under /dev; a loaded driver is not enough",
        mend: "sudo nvidia-modprobe -c 0 -u; in a container: `docker run --gpus all …`",
        look: look_nodes,
    },
    Check {
        id: "driver.open",
        layer: Layer::Machine,
        title: "open kernel module",
        ways: DIRECT,
        why: "P2PDMA and nvidia-fs since 2.17 work with NVIDIA's open kernel module only",
        mend: "sudo apt install nvidia-open && sudo reboot",
        look: look_open,
    },
    Check {
        id: "driver.version",
        layer: Layer::Machine,
        title: "driver version",
        ways: P2PDMA,
        why: "drivers before 565.47 do not support the kernel's P2PDMA",
        mend: "install an open driver of 565.47 or later",
        look: look_version,
    },
    Check {
        id: "driver.registry",
        layer: Layer::Machine,
        title: "static BAR1",
        ways: P2PDMA,
        why: "on x86 P2PDMA needs all GPU memory mapped in BAR1, without write combining",
        mend: "echo 'options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"' \
               | sudo tee /etc/modprobe.d/nvidia-p2pdma.conf && sudo update-initramfs -u && sudo reboot",
        look: look_registry,
    },
    Check {
        id: "gpu.class",
        layer: Layer::Machine,
        title: "GPU class",
        ways: DIRECT,
        why: "GPUDirect Storage supports data-centre and professional GPUs, not GeForce; P2PDMA needs \
              Ampere or later",
        mend: "none on this GPU: the pinned ring is used instead and reaches the speed of the bus",
        look: look_class,
    },
    Check {
        id: "gpu.bar1",
        layer: Layer::Machine,
        title: "BAR1 size",
        ways: P2PDMA,
        why: "drives and NICs reach GPU memory through BAR1; a small one cannot map all of it and \
              limits what can be registered at once",
        mend: "enable `Above 4G Decoding` and `Resizable BAR` in the firmware; in a virtual machine \
               give the guest a large MMIO window",
        look: look_bar1,
    },
    Check {
        id: "gpu.link",
        layer: Layer::Machine,
        title: "GPU's PCIe link",
        ways: ADVICE,
        why: "a link that trained with fewer lanes than it has is slower in both directions",
        mend: "reseat the card or riser, then check LnkSta in `sudo lspci -vv`",
        look: look_link,
    },
];

fn look_present(facts: &Facts<'_>) -> Outcome {
    if facts.gpus.is_empty() {
        return Outcome::fail("no NVIDIA GPU on the PCI bus");
    }
    if let [gpu] = &facts.gpus[..] {
        let model = gpu.model.as_deref().unwrap_or("one");
        return Outcome::pass(format!("{model} at {}", gpu.address));
    }
    let models = facts.gpus.iter().map(|gpu| gpu.model.as_deref());
    Outcome::pass(tally(models.map(|model| model.unwrap_or("unknown"))))
}

fn look_loaded(facts: &Facts<'_>) -> Outcome {
    if facts.gpus.is_empty() {
        return Outcome::skip("no GPU");
    }
    match &facts.driver {
        Some(driver) => Outcome::pass(format!("version {}", driver.version)),
        None => Outcome::fail("the NVIDIA driver is not loaded"),
    }
}

fn look_nodes(facts: &Facts<'_>) -> Outcome {
    if facts.driver.is_none() {
        return Outcome::skip("no driver");
    }
    let mut missing: Vec<&str> = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
        .into_iter()
        .filter(|path| !facts.root.exists(path))
        .collect();
    // A container may be given any one of the GPUs.
    let is_gpu = |name: &String| {
        name.strip_prefix("nvidia")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    if !facts.root.list("/dev").iter().any(is_gpu) {
        missing.push("/dev/nvidia0");
    }
    if missing.is_empty() {
        Outcome::pass("nvidiactl, nvidia-uvm and a GPU node exist")
    } else {
        Outcome::fail(format!("{} missing", missing.join(", ")))
    }
}

fn look_open(facts: &Facts<'_>) -> Outcome {
    let Some(driver) = &facts.driver else {
        return Outcome::skip("no driver");
    };
    if driver.is_open {
        return Outcome::pass("open");
    }
    let seen = "the driver is the proprietary kernel module";
    let old = nvidia_fs::version(facts).and_then(|version| major_minor(&version));
    if old.is_some_and(|version| version < nvidia_fs::OPEN_ONLY) {
        // An old nvidia-fs still works with the proprietary module.
        Outcome::fail(seen).closes(P2PDMA)
    } else {
        Outcome::fail(seen)
    }
}

fn look_version(facts: &Facts<'_>) -> Outcome {
    let Some(driver) = &facts.driver else {
        return Outcome::skip("no driver");
    };
    match major_minor(&driver.version) {
        Some(version) if version < P2PDMA_DRIVER => {
            Outcome::fail(format!("driver {} is too old for P2PDMA", driver.version))
        }
        Some(_) => Outcome::pass(driver.version.clone()),
        None => Outcome::skip("version not reported"),
    }
}

fn look_registry(facts: &Facts<'_>) -> Outcome {
    if facts.driver.is_none() || !facts.kernel.is_x86 {
        return Outcome::skip("only with the NVIDIA driver on x86");
    }
    let Some(params) = facts.root.text("/proc/driver/nvidia/params") else {
        return Outcome::skip("/proc/driver/nvidia/params cannot be read");
    };
    let set = params
        .lines()
        .find_map(|line| line.strip_prefix("RegistryDwords:"))
        .unwrap_or_default();
    let missing: Vec<&str> = ["RMForceStaticBar1=1", "RmForceDisableIomapWC=1"]
        .into_iter()
        .filter(|word| !set.contains(word))
        .collect();
    if missing.is_empty() {
        Outcome::pass("RMForceStaticBar1=1 and RmForceDisableIomapWC=1 are set")
    } else {
        Outcome::fail(format!("the driver runs without {}", missing.join(" and ")))
    }
}

fn look_class(facts: &Facts<'_>) -> Outcome {
    let models: Vec<&str> = facts.gpus.iter().filter_map(|gpu| gpu.model.as_deref()).collect();
    if models.is_empty() {
        return Outcome::skip("the model is not known");
    }
    if let Some(model) = models.iter().find(|model| model.contains("GeForce")) {
        return Outcome::fail(format!("{model} is a consumer GPU"));
    }
    let is_served = |model: &&&str| {
        let mut words = model.split([' ', '-']);
        words.any(|word| P2PDMA_MODELS.contains(&word))
    };
    match models.iter().find(|model| !is_served(model)) {
        Some(model) => Outcome::fail(format!("{model} is not supported by P2PDMA")).closes(P2PDMA),
        None => Outcome::pass(tally(models.into_iter())),
    }
}

fn look_bar1(facts: &Facts<'_>) -> Outcome {
    let sizes: Vec<(&Gpu, u64)> = facts
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu, gpu.bar1_bytes?)))
        .collect();
    let Some((gpu, least)) = sizes.iter().min_by_key(|(_, bytes)| *bytes) else {
        return Outcome::skip("size not reported");
    };
    let seen = format!("{} on {}", Bytes(*least), gpu.address);
    if *least < BAR1_BYTES_MIN {
        Outcome::fail(format!("BAR1 is only {seen}"))
    } else if sizes.len() == 1 {
        Outcome::pass(seen)
    } else {
        Outcome::pass(format!("{} or more on each", Bytes(*least)))
    }
}

fn look_link(facts: &Facts<'_>) -> Outcome {
    let links: Vec<_> = facts
        .gpus
        .iter()
        .filter_map(|gpu| {
            let link = facts.topology.device(gpu.address)?.link?;
            Some((gpu.address, link))
        })
        .collect();
    let Some((_, first)) = links.first() else {
        return Outcome::skip("link not reported");
    };
    match links.iter().find(|(_, link)| link.is_narrow()) {
        Some((address, link)) => Outcome::warn(format!("{address} runs on {} of {} lanes", link.width, link.width_max)),
        None => Outcome::pass(format!("{} lanes, up to {} GT/s", first.width, first.speed_gt_max)),
    }
}

/// Counts equal names: `8 × H100`.
fn tally<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let counted = counts.into_iter();
    list(counted.map(|(name, count)| format!("{count} × {name}")))
}
