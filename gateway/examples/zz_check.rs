fn main() {
    for f in std::env::args().skip(1) {
        match switchyard::config::load(std::path::Path::new(&f)) {
            Ok(s) => {
                println!("== {f} ok");
                for w in &s.warnings {
                    println!("   {w}");
                }
                for m in &s.models {
                    println!("   {} {:?} {:?} {:?}", m.id, m.launch.as_ref().map(|l| &l.argv), m.upstream, m.aliases);
                }
            }
            Err(p) => println!("== {f}\n{p}"),
        }
    }
}
