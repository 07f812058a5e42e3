//! Runs scenario files: `cargo run -p switchyard-simulator --example simulate -- FILE…`. Prints each one's table and
//! writes its picture and CSV beside the build's output.

use std::{env, error::Error, fs, path::Path};

use switchyard_simulator::{Scenario, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/simulations");
    fs::create_dir_all(&folder)?;
    for file in env::args().skip(1) {
        let scenario = match Scenario::parse(&file, &fs::read_to_string(&file)?) {
            Ok(scenario) => scenario,
            Err(problems) => {
                problems.iter().for_each(|problem| eprintln!("{problem}"));
                return Err(format!("{file} is not a scenario").into());
            }
        };
        let report = simulate(&scenario)?;
        println!("{}", report.table());
        fs::write(folder.join(&report.name).with_extension("svg"), report.svg())?;
        fs::write(folder.join(&report.name).with_extension("csv"), report.csv())?;
    }
    Ok(())
}
