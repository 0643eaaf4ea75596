import json,os,sys,time
from concurrent.futures import ProcessPoolExecutor,as_completed
from multiprocessing import get_context
sys.path.insert(0,os.getcwd())
def one(name):
    import numpy as np
    from campaigns.reports.measure import _ALL
    from campaigns.known import unknown
    from workbench import Case, run
    from workbench.readings.measure import measured, rms
    from dataclasses import replace
    r=_ALL[name]; t=time.time()
    try:
        trace=run(r.function, Case(**r.options))
        known=("out","lse") if os.environ.get("LSE") else ("out",)
        again=trace.rerun
        trace=replace(unknown(trace,known), rerun=lambda case,inputs=None: unknown(again(case,inputs),known))
        m=measured(trace)
        nat=m.target.natural
        return dict(name=name,faults=r.faults,truth=r.truth,visible=bool(nat.wrong.any()),
            error=rms(nat,nat.expected),
            found=[(f.reading,f.text) for f in m.findings],proofs=[(p.error,p.left,p.held) for p in m.proofs],proved=m.proved,
            calls=m.calls,s=round(m.seconds,2),known=list(trace.stages))
    except Exception as e:
        import traceback
        return dict(name=name,faults=r.faults,truth=r.truth,err=traceback.format_exc()[-700:])
if __name__=="__main__":
    from campaigns.reports.measure import _ALL
    names=sys.argv[2:] or list(_ALL)
    if sys.argv[1]=="dev": names=[n for i,n in enumerate(_ALL) if i%2==0]
    rows=[]
    jobs=int(os.environ.get("JOBS","16"))
    if jobs==1: rows=[one(n) for n in names]
    else:
        with ProcessPoolExecutor(jobs,get_context("spawn")) as pool:
            for f in as_completed([pool.submit(one,n) for n in names]): rows.append(f.result())
    rows.sort(key=lambda r:names.index(r["name"]))
    out=os.environ.get("OUT","/tmp")
    with open(out+"/meas.jsonl","w") as f:
        for r in rows: f.write(json.dumps(r,default=str)+"\n")
    w=[r for r in rows if r["faults"] and "err" not in r]
    print("errors",sum("err" in r for r in rows),"wrong",len(w),"visible",sum(r["visible"] for r in w),"proved",sum(r["proved"] for r in w),"found",sum(bool(r["found"]) for r in w),"right found",[r["name"] for r in rows if not r["faults"] and r.get("found")])
    for r in rows:
        if "err" in r: print("ERR",r["name"],r["err"]); continue
        if not r["faults"]: continue
        print("OK " if r["proved"] else "-- " if r["found"] else ".. ", r["name"], r["calls"], r["s"], [f"{a:.2g}>{b:.2g}" for a,b,_ in r["proofs"]], "vis" if r["visible"] else "invis")
        if not r["proved"]:
            print("      T:", r["truth"][:200]); 
            for f in r["found"]: print("      F:", f[0], f[1][:200])
