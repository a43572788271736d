import asyncio,sys,time,tempfile
from pathlib import Path
import httpx
from tests.gateway import *
from tests.followed import Followed
from tests.kit.clients import ClaudeCode, Codex, OpenCode
async def main():
    up=Upstream()
    with running(up) as address:
        up.address=address
        d=Path(tempfile.mkdtemp()); c=configuration(address)
        g=Gateway(d,c)
        try:
            g.start()
            async with httpx.AsyncClient(base_url=g.address,timeout=120,trust_env=False) as http:
              for cls,m in ((ClaudeCode,"claude-kit"),(Codex,"gpt-kit"),(OpenCode,"local-kit")):
                tag=f"tag-a{m}"
                s=Followed(cls(http,model=m,session=tag,headers=bearer("alice")),tag,up,g)
                await s.turns(3); until(lambda: len(s.events("usage"))>=len(s.answered),"usage",5)
                print(m,[(e["estimate"],e["prompt_tokens"],e["estimate"]-e["prompt_tokens"]) for e in s.events("usage")])
        finally:
            g.stop()
asyncio.run(main())
