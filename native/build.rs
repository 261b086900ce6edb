//! Tells the sources from others by a checksum, which the module carries: `install.py` computes the same.

use std::path::PathBuf;
use std::{fs, io};

fn sources() -> io::Result<Vec<PathBuf>> {
    let found: io::Result<Vec<_>> = fs::read_dir("src")?.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut all: Vec<_> = found?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")).collect();
    all.extend(["Cargo.lock", "Cargo.toml", "build.rs"].map(PathBuf::from));
    all.sort();
    Ok(all)
}

fn main() -> io::Result<()> {
    let mut checksum = crc32fast::Hasher::new();
    for path in sources()? {
        checksum.update(path.to_string_lossy().as_bytes());
        checksum.update(&fs::read(&path)?);
        println!("cargo:rerun-if-changed={}", path.display());
    }
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rustc-env=SOURCES_CRC={:08x}", checksum.finalize());
    Ok(())
}
