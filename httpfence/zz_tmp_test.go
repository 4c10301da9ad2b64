package httpfence
import ("testing";"net/http";"time";"github.com/go-chi/chi/v5";"github.com/fencepost-go/fencepost/guard";"sort";"context")
func TestZZ(t *testing.T){
 store:=guard.NewMemory(nil)
 c:=guard.Claim{Resource:"acct-000000",Token:5,LeaseID:"b"}
 store.Admit(context.Background(),c)
 fence:=New(store,ChiParam("id"),nil)
 router:=chi.NewRouter()
 router.Post("/acct/{id}/close",func(w http.ResponseWriter,r *http.Request){
  resf:=ChiParam("id")
  mk,_:=store.Mark(r.Context(),"acct-000000")
  fs:=map[string]func(){
   "check":func(){fence.Check(r)},
   "presented":func(){fence.presented(r)},
   "resource":func(){resf(r)},
   "mark":func(){store.Mark(r.Context(),"acct-000000")},
   "decide":func(){guard.Decide(guard.SameOrNewer,mk,c)},
   "hdr1":func(){_ = r.Header[fence.tokenHeader]},
   "parse":func(){guard.ParseToken("5")},
   "validres":func(){guard.ValidateResource("acct-000000")},
   "validlease":func(){guard.ValidateLeaseID("b")},
   "empty":func(){},
   "rctx":func(){chi.RouteContext(r.Context())},
  }
  for n,f:=range fs{
   var v []float64
   for i:=0;i<300;i++{ s:=time.Now(); for k:=0;k<2000;k++{f()}; v=append(v,float64(time.Since(s).Nanoseconds())/2000)}
   sort.Float64s(v)
   t.Logf("%-12s min %.1f med %.1f",n,v[0],v[len(v)/2])
  }
 })
 r:=newRequest("acct/acct-000000/close","5","b")
 router.ServeHTTP(&discard{h:http.Header{}},r)
}
